//! Contexts that are imported by the command descriptor of another context, and objects in both.

use std::ptr;
use std::rc::Rc;

use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        import_of_no_device_is_refused,
        import_of_another_file_is_refused,
        import_of_no_domain_is_refused,
        import_of_no_region_is_refused,
        import_of_no_device_memory_is_refused,
        imported_context_works_and_is_closed_separately,
        imported_domain_is_the_other_context_s,
        imported_domain_takes_regions_and_queue_pairs,
        a_domain_that_its_import_freed_does_not_exist,
        imported_region_has_the_keys_of_the_region,
        region_deregistered_by_its_import_grants_nothing,
        imported_device_memory_has_the_same_bytes,
        object_of_a_context_that_is_not_shared_is_refused,
    ]
}

/// An imported context of the device, which is closed when the value is dropped.
struct Import(*mut ibv_context);

impl Import {
    /// Ignores the case if the device cannot be imported.
    fn of(device: &Device) -> Self {
        let command = unsafe { (*device.context()).cmd_fd };
        let duplicate = unsafe { libc::fcntl(command, libc::F_DUPFD_CLOEXEC, 0) };
        assert!(duplicate >= 0, "the command descriptor is {command}");
        let context = unsafe { ibv_import_device(duplicate) };
        if context.is_null() {
            let refused = errno();
            unsafe { libc::close(duplicate) };
            Err::<(), _>(refused).supported("ibv_import_device");
        }
        Self(context)
    }

    fn domain(&self, pd: &Pd) -> Result<*mut ibv_pd, i32> {
        pointer(unsafe { ibv_import_pd(self.0, (*pd.raw()).handle) })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        must("ibv_close_device", unsafe { ibv_close_device(self.0) });
    }
}

fn import_of_no_device_is_refused(_: &Device) {
    unsafe { ibv_import_device(-1) }.fails("ibv_import_device(-1)", &[libc::EINVAL, libc::EBADF]);
}

fn import_of_another_file_is_refused(_: &Device) {
    let mut ends = [0; 2];
    unsafe { libc::pipe(ends.as_mut_ptr()) }.succeeds("pipe");
    let result = pointer(unsafe { ibv_import_device(ends[0]) });
    for end in ends {
        unsafe { libc::close(end) }.succeeds("close");
    }
    result.fails("ibv_import_device of a pipe", &[libc::EINVAL]);
}

fn import_of_no_domain_is_refused(device: &Device) {
    unsafe { ibv_import_pd(device.context(), u32::MAX) }.refuses("ibv_import_pd");
}

fn import_of_no_region_is_refused(device: &Device) {
    let pd = Pd::new(device);
    unsafe { ibv_import_mr(pd.raw(), u32::MAX) }.refuses("ibv_import_mr");
}

fn import_of_no_device_memory_is_refused(device: &Device) {
    unsafe { ibv_import_dm(device.context(), u32::MAX) }.refuses("ibv_import_dm");
}

fn imported_context_works_and_is_closed_separately(device: &Device) {
    let exporter = device.reopened();
    let import = Import::of(&exporter);
    let mut attr = ibv_device_attr::default();
    unsafe { ibv_query_device(import.0, &mut attr) }.succeeds("ibv_query_device");
    equal("node_guid", attr.node_guid, device.attr().node_guid);
    let again = unsafe { libc::fcntl((*import.0).cmd_fd, libc::F_DUPFD_CLOEXEC, 0) };
    drop(exporter);
    let pd = unsafe { ibv_alloc_pd(import.0) }.succeeds("ibv_alloc_pd");
    // A duplicate of an imported descriptor refers to the same file.
    let second = Import(unsafe { ibv_import_device(again) }.succeeds("ibv_import_device"));
    let other =
        unsafe { ibv_import_pd(second.0, (*pd).handle) }.succeeds("ibv_import_pd of an import's");
    unsafe { ibv_unimport_pd(other) };
    unsafe { ibv_dealloc_pd(pd) }.succeeds("ibv_dealloc_pd");
}

fn imported_domain_is_the_other_context_s(device: &Device) {
    let import = Import::of(device);
    let pd = Pd::new(device);
    let other = import.domain(&pd).succeeds("ibv_import_pd");
    equal("the handle", unsafe { (*other).handle }, unsafe {
        (*pd.raw()).handle
    });
    equal("the context", unsafe { (*other).context }, import.0);
    let memory = Rc::new(Memory::new(4096));
    let raw = unsafe { ibv_reg_mr(other, memory.address() as *mut _, 4096, 1) };
    let mr = raw.succeeds("ibv_reg_mr in the imported domain");
    unsafe { ibv_dealloc_pd(pd.raw()) }.fails("ibv_dealloc_pd", &[libc::EBUSY]);
    unsafe { ibv_dereg_mr(mr) }.succeeds("ibv_dereg_mr");
    unsafe { ibv_unimport_pd(other) };
    // The domain itself is still there.
    let _mr = Mr::new(&pd, 4096, ALL_ACCESS);
}

fn imported_domain_takes_regions_and_queue_pairs(device: &Device) {
    let import = Import::of(device);
    let pair = Pair::rc(device);
    let other = import.domain(&pair.pd).succeeds("ibv_import_pd");
    let memory = Rc::new(Memory::new(4096));
    let access = ALL_ACCESS.0 as i32;
    let raw = unsafe { ibv_reg_mr(other, memory.address() as *mut _, 4096, access) };
    let mr = raw.succeeds("ibv_reg_mr in the imported domain");
    pair.a.mr.write(0, b"to its import");
    let (start, key) = unsafe { ((*mr).addr as u64, (*mr).rkey) };
    let request = Request::write(&[pair.a.mr.sge(0, 13)], start + 8, key);
    pair.a.qp.post(request);
    pair.a.cq.success(1);
    equal("what came", memory.read(8, 13), b"to its import".to_vec());
    unsafe { ibv_dereg_mr(mr) }.succeeds("ibv_dereg_mr");

    let mut attr = ibv_srq_init_attr {
        attr: ibv_srq_attr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        },
        ..Default::default()
    };
    let srq = unsafe { ibv_create_srq(other, &mut attr) }.succeeds("ibv_create_srq");
    equal("the context", unsafe { (*srq).context }, import.0);
    unsafe { ibv_destroy_srq(srq) }.succeeds("ibv_destroy_srq");
    unsafe { ibv_unimport_pd(other) };
}

fn a_domain_that_its_import_freed_does_not_exist(device: &Device) {
    let import = Import::of(device);
    let pd = unsafe { ibv_alloc_pd(device.context()) }.succeeds("ibv_alloc_pd");
    let handle = unsafe { (*pd).handle };
    let other = unsafe { ibv_import_pd(import.0, handle) }.succeeds("ibv_import_pd");
    unsafe { ibv_dealloc_pd(other) }.succeeds("ibv_dealloc_pd of the import");
    unsafe { ibv_import_pd(import.0, handle) }.refuses("ibv_import_pd of a freed domain");
    // Only the C object is left.
    unsafe { ibv_unimport_pd(pd) };
}

fn imported_region_has_the_keys_of_the_region(device: &Device) {
    let import = Import::of(device);
    let pair = Pair::rc(device);
    let pd = import.domain(&pair.pd).succeeds("ibv_import_pd");
    let handle = unsafe { (*pair.b.mr.raw()).handle };
    let mr = unsafe { ibv_import_mr(pd, handle) }.succeeds("ibv_import_mr");
    let about = unsafe { &*mr };
    equal("lkey", about.lkey, pair.b.mr.lkey());
    equal("rkey", about.rkey, pair.b.mr.rkey());
    equal("length", about.length, SPACE);
    equal("addr", about.addr, ptr::null_mut());
    equal("the domain", about.pd, pd);
    unsafe { ibv_unimport_mr(mr) };
    unsafe { ibv_unimport_pd(pd) };
    // The region itself is still there.
    pair.a.qp.post(pair.a.write(&pair.b, 0, 64));
    pair.a.cq.success(1);
}

fn region_deregistered_by_its_import_grants_nothing(device: &Device) {
    let import = Import::of(device);
    let pair = Pair::rc(device);
    let pd = import.domain(&pair.pd).succeeds("ibv_import_pd");
    let memory = Rc::new(Memory::new(4096));
    let access = ALL_ACCESS.0 as i32;
    let raw = unsafe { ibv_reg_mr(pair.pd.raw(), memory.address() as *mut _, 4096, access) };
    let mr = raw.succeeds("ibv_reg_mr");
    let (handle, start, key) = unsafe { ((*mr).handle, (*mr).addr as u64, (*mr).rkey) };
    let other = unsafe { ibv_import_mr(pd, handle) }.succeeds("ibv_import_mr");
    unsafe { ibv_dereg_mr(other) }.succeeds("ibv_dereg_mr of the import");
    unsafe { ibv_import_mr(pd, handle) }.refuses("ibv_import_mr of a region that is gone");
    let request = Request::write(&[pair.a.mr.sge(0, 8)], start, key);
    pair.a.qp.post(request);
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    unsafe { ibv_dereg_mr(mr) }.refuses("ibv_dereg_mr of a region that is gone");
    unsafe { ibv_unimport_mr(mr) };
    unsafe { ibv_unimport_pd(pd) };
}

fn imported_device_memory_has_the_same_bytes(device: &Device) {
    let import = Import::of(device);
    if device.attr_ex().max_dm_size == 0 {
        ignore("the device claims no memory of its own (max_dm_size)");
    }
    let mut attr = ibv_alloc_dm_attr {
        length: 4096,
        ..Default::default()
    };
    let dm = unsafe { ibv_alloc_dm(device.context(), &mut attr) }.succeeds("ibv_alloc_dm");
    let handle = unsafe { (*dm).handle };
    let other = unsafe { ibv_import_dm(import.0, handle) }.succeeds("ibv_import_dm");
    unsafe { ibv_memcpy_to_dm(dm, 64, b"in both.".as_ptr().cast(), 8) }
        .succeeds("ibv_memcpy_to_dm");
    let mut out = [0_u8; 8];
    unsafe { ibv_memcpy_from_dm(out.as_mut_ptr().cast(), other, 64, 8) }
        .succeeds("ibv_memcpy_from_dm");
    equal("what is there", &out, b"in both.");
    // Memory of one context is registered in a domain of the other.
    let pd = Pd::new(device);
    let imported = import.domain(&pd).succeeds("ibv_import_pd");
    let access = (ALL_ACCESS | ibv_access_flags::IBV_ACCESS_ZERO_BASED).0;
    let mr = unsafe { ibv_reg_dm_mr(imported, dm, 0, 4096, access) }.succeeds("ibv_reg_dm_mr");
    unsafe { ibv_free_dm(other) }.fails("ibv_free_dm", &[libc::EBUSY]);
    unsafe { ibv_dereg_mr(mr) }.succeeds("ibv_dereg_mr");
    unsafe { ibv_unimport_pd(imported) };
    unsafe { ibv_unimport_dm(other) };
    unsafe { ibv_free_dm(dm) }.succeeds("ibv_free_dm");
    unsafe { ibv_import_dm(import.0, handle) }.refuses("ibv_import_dm of freed memory");
}

fn object_of_a_context_that_is_not_shared_is_refused(device: &Device) {
    let import = Import::of(device);
    let stranger = device.reopened();
    let pd = Pd::new(&stranger);
    let mr = Mr::new(&pd, 4096, ALL_ACCESS);
    import.domain(&pd).fails("ibv_import_pd", &[libc::ENOENT]);
    let own = Pd::new(device);
    unsafe { ibv_import_mr(own.raw(), (*mr.raw()).handle) }.fails("ibv_import_mr", &[libc::ENOENT]);
}
