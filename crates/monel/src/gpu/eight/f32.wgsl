struct Raw_NAME { a: vec4<u32>, b: vec4<u32> }
fn load_NAME(row: u32, g: u32) -> Raw_NAME { return Raw_NAME(NAME4[row + 2u * g], NAME4[row + 2u * g + 1u]); }
fn group_NAME(r: Raw_NAME, g: u32) -> Group { return Group(bitcast<vec4<f32>>(r.a), bitcast<vec4<f32>>(r.b)); }
