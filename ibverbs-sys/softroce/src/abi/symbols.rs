use std::ffi::{CStr, c_void};
use std::ptr;

use super::{
    ah, buffer, completion, context, device, device_memory, fork, gid, marshal, memory, multicast,
    newer, open, pd, query, queue_pair, real, srq, text,
};

/// A public symbol of libibverbs, and the address of this crate's definition of the symbol.
pub(crate) struct Symbol {
    name: &'static CStr,
    ours: *const (),
}

// SAFETY: the pointer is the address of a function, and is only compared.
unsafe impl Sync for Symbol {}

impl Symbol {
    /// Checks which definition of the symbol the dynamic linker finds. If another library or the
    /// program defines the symbol that is found, returns the name of the symbol and the file that
    /// contains it. Returns `None` if this crate's definition is found. Also returns `None` if the
    /// installed libibverbs is too old to have the symbol.
    pub(crate) fn foreign_definition(&self) -> Option<String> {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
        let ours = ptr::eq(found.cast_const().cast(), self.ours);
        // A program exports only symbols that the installed library has when it is linked. A newer
        // symbol is thus not found, or is found in a second copy of this crate, which would treat
        // objects of this copy as those of another device and return that they are not supported.
        // Both cases are accepted.
        let newer = found.is_null() || NEWER_SYMBOLS.contains(&self.name);
        if ours || (newer && !real::has(self.name)) {
            return None;
        }
        Some(format!("{} ({})", self.name.to_string_lossy(), path(found)))
    }
}

/// Returns the path of the library or program that contains the function at the address `function`,
/// for an error message.
fn path(function: *mut c_void) -> String {
    if function.is_null() {
        return "not exported".to_owned();
    }
    // SAFETY: zeroes are valid for all fields: null pointers.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be passed, and `about` is valid for writes.
    if unsafe { libc::dladdr(function, &mut about) } == 0 || about.dli_fname.is_null() {
        return "from an unknown file".to_owned();
    }
    // SAFETY: the name is a C string of the dynamic linker.
    let file = unsafe { CStr::from_ptr(about.dli_fname) };
    format!("from {}", file.to_string_lossy())
}

/// Symbols that an older installed version of libibverbs may lack. This crate defines them
/// nevertheless, for programs that were built with a newer version.
const NEWER_SYMBOLS: &[&CStr] = &[
    c"ibv_alloc_buf",
    c"ibv_free_buf",
    c"ibv_reg_buf_mr",
    c"ibv_export_buf_dmabuf_fd",
    c"ibv_reg_mr_ex",
    c"ibv_alloc_dmah",
    c"ibv_dealloc_dmah",
    c"ibv_dm_export_dmabuf_fd",
    c"ibv_query_port_speed",
    c"_ibv_query_comp_cntr_caps",
    c"ibv_create_comp_cntr",
    c"ibv_destroy_comp_cntr",
    c"ibv_set_comp_cntr",
    c"ibv_set_err_comp_cntr",
    c"ibv_inc_comp_cntr",
    c"ibv_inc_err_comp_cntr",
    c"ibv_read_comp_cntr",
    c"ibv_read_err_comp_cntr",
    c"ibv_qp_attach_comp_cntr",
];

macro_rules! symbols {
    ($($module:ident: $($name:ident),+;)+) => {
        pub(crate) static SYMBOLS: &[Symbol] = &[$($(Symbol {
            name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero inside"),
            },
            ours: $module::$name as *const (),
        },)+)+];
    };
}

symbols! {
    device: ibv_get_device_list, ibv_free_device_list, ibv_get_device_name, ibv_get_device_guid,
        ibv_get_device_index;
    fork: ibv_fork_init, ibv_is_fork_initialized;
    gid: ibv_query_gid, ibv_query_gid_type, _ibv_query_gid_ex, _ibv_query_gid_table, ibv_query_pkey,
        ibv_get_pkey_index;
    open: ibv_open_device, ibv_close_device, ibv_import_device;
    query: ibv_query_device, ibv_query_port;
    ah: ibv_create_ah, ibv_destroy_ah, ibv_init_ah_from_wc, ibv_create_ah_from_wc, ibv_resolve_eth_l2_from_gid;
    completion: ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event, ibv_ack_cq_events, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq;
    context: ibv_get_async_event, ibv_ack_async_event;
    buffer: ibv_alloc_buf, ibv_free_buf, ibv_reg_buf_mr, ibv_export_buf_dmabuf_fd;
    device_memory: ibv_import_dm, ibv_unimport_dm;
    memory: ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_reg_dmabuf_mr, ibv_rereg_mr, ibv_dereg_mr, ibv_import_mr, ibv_unimport_mr;
    pd: ibv_alloc_pd, ibv_dealloc_pd, ibv_import_pd, ibv_unimport_pd;
    srq: ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq;
    marshal: ibv_copy_ah_attr_from_kern, ibv_copy_qp_attr_from_kern, ibv_copy_path_rec_from_kern,
        ibv_copy_path_rec_to_kern, ibv_dontfork_range, ibv_dofork_range, ibv_get_sysfs_path,
        ibv_read_sysfs_file;
    multicast: ibv_attach_mcast, ibv_detach_mcast;
    newer: ibv_reg_mr_ex, ibv_alloc_dmah, ibv_dealloc_dmah, ibv_dm_export_dmabuf_fd, ibv_query_port_speed,
        _ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_destroy_comp_cntr, ibv_set_comp_cntr,
        ibv_set_err_comp_cntr, ibv_inc_comp_cntr, ibv_inc_err_comp_cntr, ibv_read_comp_cntr,
        ibv_read_err_comp_cntr, ibv_qp_attach_comp_cntr;
    queue_pair: ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp, ibv_qp_to_qp_ex,
        ibv_query_qp_data_in_order, ibv_set_ece, ibv_query_ece;
    text: ibv_wc_status_str, ibv_event_type_str, ibv_node_type_str, ibv_port_state_str,
        ibv_rate_to_mult, mult_to_ibv_rate, ibv_rate_to_mbps, mbps_to_ibv_rate;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::CStr;
    use std::fs;

    use object::Endianness;
    use object::read::elf::ElfFile64;
    use object::{Object, ObjectSymbol, ObjectSymbolTable, SymbolKind};

    use super::super::real;
    use super::{NEWER_SYMBOLS, SYMBOLS, path};

    /// Releases of rdma-core in ascending order. Each release comes with the list of the symbols
    /// that its libibverbs exports, from its `libibverbs.map`.
    const RELEASES: [(u32, &str); 4] = [
        (44, include_str!("symbols/rdma-core-44.txt")),
        (50, include_str!("symbols/rdma-core-50.txt")),
        (56, include_str!("symbols/rdma-core-56.txt")),
        (65, include_str!("symbols/rdma-core-65.txt")),
    ];

    /// Symbols of libibverbs in [`RELEASES`] that this crate does not define, each with the reason.
    const OMITTED: [(&str, &str); 2] = [
        (
            "ibv_register_driver",
            "for drivers of old releases; no argument is an object of a device",
        ),
        (
            "ibv_query_device_ex",
            "exported by release 44, but an inline function in its header",
        ),
    ];

    /// Symbols that this crate defines although libibverbs exports them only for its own tools, not
    /// for programs. The tool `ibv_devinfo` uses them.
    const UNEXPORTED: [&str; 1] = ["ibv_query_gid_type"];

    /// Returns the names of the functions that the installed libibverbs exports to programs. Hidden
    /// older versions and the interface for drivers are not included.
    fn exported() -> BTreeSet<String> {
        let function = real::Symbol::new(c"ibv_get_device_list").find(std::ptr::null());
        let file = path(
            function
                .expect("libibverbs.so.1 is installed")
                .cast_mut()
                .cast(),
        );
        let file = file.strip_prefix("from ").unwrap();
        let data = fs::read(file).unwrap();
        let elf = ElfFile64::<Endianness>::parse(&*data).unwrap();
        let sections = elf.elf_section_table();
        let versions = sections.versions(elf.endian(), &*data).unwrap().unwrap();
        let mut names = BTreeSet::new();
        for symbol in elf.dynamic_symbol_table().unwrap().symbols() {
            let version = versions.version_index(elf.endian(), symbol.index());
            if symbol.is_undefined() || symbol.kind() != SymbolKind::Text || version.is_hidden() {
                continue;
            }
            let version = versions
                .version(version)
                .unwrap()
                .expect("every function has a version");
            if !version.name().starts_with(b"IBVERBS_PRIVATE") {
                names.insert(symbol.name().unwrap().to_owned());
            }
        }
        names
    }

    #[test]
    fn every_public_symbol_is_defined() {
        let exported = exported();
        assert!(exported.len() > 60, "the list looks wrong: {exported:?}");
        let ours: BTreeSet<String> = SYMBOLS.iter().map(|symbol| name(symbol.name)).collect();
        assert_eq!(ours.len(), SYMBOLS.len(), "a symbol is listed twice");
        let missing: Vec<_> = exported.difference(&ours).collect();
        assert!(
            missing.is_empty(),
            "without a definition of ours: {missing:?}"
        );
        let newer: Vec<_> = NEWER_SYMBOLS.iter().copied().map(name).collect();
        let invented: Vec<_> = ours
            .difference(&exported)
            .filter(|name| !UNEXPORTED.contains(&name.as_str()) && !newer.contains(name))
            .collect();
        assert!(
            invented.is_empty(),
            "no public symbols of libibverbs: {invented:?}"
        );
    }

    #[test]
    fn every_symbol_of_the_releases_is_defined() {
        let ours: BTreeSet<String> = SYMBOLS.iter().map(|symbol| name(symbol.name)).collect();
        let mut known: BTreeSet<String> = UNEXPORTED.map(str::to_owned).into();
        for (release, list) in RELEASES {
            let mut count = 0;
            for line in list.lines() {
                let (symbol, version) = line.split_once(' ').expect("a name and a version");
                assert!(version.starts_with("IBVERBS_1."), "{line}");
                let is_omitted = OMITTED.iter().any(|(omitted, _)| *omitted == symbol);
                assert_ne!(
                    ours.contains(symbol),
                    is_omitted,
                    "{symbol} of rdma-core {release} must be defined, or left out with a reason"
                );
                known.insert(symbol.to_owned());
                count += 1;
            }
            assert!(count > 70, "the list of {release} has {count} symbols");
        }
        let invented: Vec<_> = ours.difference(&known).collect();
        assert!(invented.is_empty(), "of no release: {invented:?}");
        // The symbols that release 44 lacks are the newer symbols, which the installed library may
        // lack.
        let oldest: BTreeSet<_> = (RELEASES[0].1.lines())
            .filter_map(|line| line.split(' ').next())
            .collect();
        let newer: BTreeSet<String> = NEWER_SYMBOLS.iter().copied().map(name).collect();
        let later: BTreeSet<String> = ours
            .into_iter()
            .filter(|symbol| !oldest.contains(symbol.as_str()) && !UNEXPORTED.contains(&&**symbol))
            .collect();
        assert_eq!(newer, later);
    }

    #[test]
    fn this_program_uses_the_symbols_of_this_library() {
        crate::install();
    }

    fn name(name: &CStr) -> String {
        name.to_str().unwrap().to_owned()
    }
}
