use std::sync::Once;

use super::symbols::{SYMBOLS, Symbol};

/// Checks that this process calls the verbs of softroce, and not those of another libibverbs. The
/// check covers Rust code, librdmacm and all other libraries. Repeated calls cost almost nothing.
///
/// A program that links this crate must call this function, which refers to all verbs. Without the
/// call, the linker drops them as unused, and the program silently uses the system's libibverbs.
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
