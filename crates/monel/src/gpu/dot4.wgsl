// Products of four signed bytes each, added up, on hardware that has them.
fn dot_bytes(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }
