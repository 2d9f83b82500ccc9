// Reports that an input is wrong. The first report of a chunk stays.
fn fault(value: u32) {
  if atomicCompareExchangeWeak(&faults[p.fault_at], 0u, p.fault_id).exchanged {
    atomicStore(&faults[p.fault_at + 1u], value);
  }
}
