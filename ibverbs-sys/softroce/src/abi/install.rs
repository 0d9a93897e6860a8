use std::sync::Once;

use super::symbols::{SYMBOLS, Symbol};

/// Makes sure that this program's verbs are softroce's, for Rust's own calls, for librdmacm's and for
/// those of any other library in the process. Cheap, and right to call more than once.
///
/// A program that links this crate and calls nothing of it would silently run on the real library:
/// the linker takes of a library only what is asked for. This function asks for all of it.
///
/// # Panics
/// With the reason, if a function of libibverbs is not softroce's.
pub fn install() {
    static CHECKED: Once = Once::new();
    CHECKED.call_once(|| {
        let foreign: Vec<String> = SYMBOLS.iter().filter_map(Symbol::foreign).collect();
        assert!(
            foreign.is_empty(),
            "softroce is linked into this program, but {} of its {} functions are not what the program's \
             libraries get, so half of them would use another libibverbs. A program must export its symbols \
             of the names ibv_* (a version script, -Wl,--exclude-libs or a static link can hide them), and \
             no other libibverbs may be loaded before it. Not ours: {}",
            foreign.len(),
            SYMBOLS.len(),
            foreign.join(", "),
        );
    });
}
