// The nth scale in f16 of a plane that begins at word `base`.
fn half_NAME(base: u32, i: u32) -> f32 { return unpack2x16float(NAME[base + i / 2u])[i & 1u]; }
