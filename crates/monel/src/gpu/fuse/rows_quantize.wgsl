  for (var i = 0u; i < PARTS; i++) {
    let q = q0 + i * THREADS;
    // Eight neighbours share a block, and a row is whole blocks.
    let z = quantize_block(v[i]);
    if q < p.quads {
      let at = p.codes + r * p.words;
      codes[at + q] = z.code;
      let to = at + p.quads + 2u * (q / 8u);
      if q % 8u == 0u { codes[to] = bitcast<u32>(z.d); codes[to + 1u] = bitcast<u32>(z.sum); }
      // What fills the row up to sixteen bytes.
      if q + 7u == p.quads && to + 2u < at + p.words { codes[to + 2u] = 0u; codes[to + 3u] = 0u; }
    }
  }
