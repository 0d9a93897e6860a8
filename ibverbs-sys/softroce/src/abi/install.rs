use std::sync::Once;

use super::symbols::{SYMBOLS, Symbol};

/// Checks that this process calls the verbs of softroce, and not those of another libibverbs. The
/// check covers Rust code, librdmacm and all other libraries. May be called any number of times at
/// low cost.
///
/// A program that links this crate without a call of this function would silently use the real
/// library, because the linker drops unreferenced objects. This function references all verbs.
///
/// # Panics
/// Panics with the reason if the process uses a function of another libibverbs.
pub fn install() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once(|| {
        let foreign_definition: Vec<String> = SYMBOLS.iter().filter_map(Symbol::foreign_definition).collect();
        assert!(
            foreign_definition.is_empty(),
            "softroce is linked into this program, but {} of its {} functions are not what the program's \
             libraries get, so half of them would use another libibverbs. A program must export its symbols \
             of the names ibv_* (a version script, -Wl,--exclude-libs or a static link can hide them), and \
             no other libibverbs may be loaded before it. Not ours: {}",
            foreign_definition.len(),
            SYMBOLS.len(),
            foreign_definition.join(", "),
        );
    });
}
