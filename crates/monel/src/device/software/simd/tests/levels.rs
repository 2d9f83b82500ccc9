//! The levels themselves. The other tests of this folder run over all that the machine has.

use super::*;

#[test]
fn names_and_levels() {
    assert_eq!(Isa::named("scalar"), Ok(Isa::SCALAR));
    for level in Level::ALL {
        match Isa::new(*level) {
            Some(isa) => assert_eq!(Isa::named(level.name()), Ok(isa)),
            None => assert!(matches!(Isa::named(level.name()), Err(IsaError::Unavailable { .. }))),
        }
    }
    assert!(Isa::available().is_sorted_by_key(Isa::level), "lowest first");
    assert_eq!(Isa::available().next(), Some(Isa::SCALAR));
    assert_eq!(Isa::available().next_back(), Some(Isa::detect()));
}

#[test]
fn errors_say_what_there_is() {
    let unknown = Isa::named("sse9").unwrap_err().to_string();
    assert!(unknown.contains(VARIABLE) && unknown.contains("'sse9'"), "{unknown}");
    assert!(Level::ALL.iter().all(|level| unknown.contains(level.name())), "{unknown}");
    // A level of the other architecture is as unknown as a word that means nothing.
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    assert!(matches!(Isa::named(foreign), Err(IsaError::Unknown { .. })));
    for level in Level::ALL.iter().filter(|level| Isa::new(**level).is_none()) {
        let error = Isa::named(level.name()).unwrap_err().to_string();
        assert!(error.contains(level.name()) && error.contains(Isa::detect().name()), "{error}");
    }
}

/// A line for who reads the log: what the tests of this folder ran on.
#[test]
fn paths_of_this_machine() {
    let names: Vec<&str> = Isa::available().map(Isa::name).collect();
    println!("cpu paths: {}", names.join(" "));
    assert!(names.iter().all(|name| Isa::named(name).is_ok()));
}
