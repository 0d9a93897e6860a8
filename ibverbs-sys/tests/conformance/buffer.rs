//! Memory that the device hands out for regions: `ibv_alloc_buf` of newer libraries.

use std::ffi::c_int;
use std::ptr;

use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        allocation_works_or_is_unsupported,
        memory_is_page_aligned_and_can_be_written,
        memory_is_source_and_target_of_every_operation,
        part_of_a_buffer_is_registered,
        region_beyond_the_buffer_is_refused,
        region_of_another_domain_is_refused,
        memory_of_a_buffer_can_be_registered_as_any_other,
        too_large_an_allocation_is_refused,
        many_buffers_exist_at_once,
    ]
}

/// A buffer, freed at its end.
struct Buffer {
    raw: *mut ibv_buf,
    start: *mut u8,
    pd: Pd,
}

impl Buffer {
    fn new(pd: &Pd, size: usize) -> Self {
        let mut raw = ptr::null_mut();
        let start = unsafe { ibv_alloc_buf(pd.raw(), size, &mut raw) }.supported("ibv_alloc_buf");
        Self {
            raw,
            start: start.cast(),
            pd: pd.clone(),
        }
    }

    fn register(&self, pd: &Pd, offset: usize, length: usize) -> *mut ibv_mr {
        let start = self.start.wrapping_add(offset).cast();
        unsafe { ibv_reg_buf_mr(pd.raw(), self.raw, start, length, ALL_ACCESS.0 as c_int) }
    }

    fn region(&self, offset: usize, length: usize) -> Region {
        Region(
            self.register(&self.pd, offset, length)
                .succeeds("ibv_reg_buf_mr"),
        )
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        (offset..offset + length)
            .map(|at| unsafe { self.start.add(at).read_volatile() })
            .collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { ibv_free_buf(self.raw) };
    }
}

/// A region of a buffer, deregistered at its end.
struct Region(*mut ibv_mr);

impl Region {
    fn raw(&self) -> &ibv_mr {
        unsafe { &*self.0 }
    }

    fn at(&self, offset: usize) -> u64 {
        self.raw().addr as u64 + offset as u64
    }

    fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.at(offset),
            length: length as u32,
            lkey: self.raw().lkey,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        must("ibv_dereg_mr", unsafe { ibv_dereg_mr(self.0) });
    }
}

/// The verb reports `EOPNOTSUPP` if the library is too old or the device cannot allocate memory.
fn allocation_works_or_is_unsupported(device: &Device) {
    let pd = Pd::new(device);
    let mut raw = ptr::null_mut();
    let result = pointer(unsafe { ibv_alloc_buf(pd.raw(), 4096, &mut raw) });
    match result {
        Ok(_) => unsafe { ibv_free_buf(raw) },
        failed => failed.fails("ibv_alloc_buf", &[libc::EOPNOTSUPP]),
    }
}

fn memory_is_page_aligned_and_can_be_written(device: &Device) {
    let pd = Pd::new(device);
    for size in [1, 4096, 10_000, 1 << 20, 5 << 20] {
        let buffer = Buffer::new(&pd, size);
        equal("the offset in a page", buffer.start as usize % 4096, 0);
        let bytes = pattern(size, 1);
        buffer.write(0, &bytes);
        assert!(buffer.read(0, size) == bytes);
    }
}

fn memory_is_source_and_target_of_every_operation(device: &Device) {
    let pair = Pair::rc(device);
    let (from, to) = (Buffer::new(&pair.pd, 20_000), Buffer::new(&pair.pd, 20_000));
    let (source, target) = (from.region(0, 20_000), to.region(0, 20_000));
    let rkey = target.raw().rkey;
    let check = |what: &str, seed: u8| {
        let bytes = pattern(10_000, seed);
        assert!(to.read(0, 10_000) == bytes, "{what} brought other bytes");
    };

    from.write(0, &pattern(10_000, 1));
    let sge = [source.sge(0, 10_000)];
    pair.a.qp.post(Request::write(&sge, target.at(0), rkey));
    pair.a.cq.success(1);
    check("the write", 1);

    from.write(0, &pattern(10_000, 2));
    pair.b.qp.receive(3, &[target.sge(0, 10_000)]);
    pair.a.qp.post(Request::send(&sge).id(2));
    pair.a.cq.success(2);
    pair.b.cq.success(3);
    check("the send", 2);

    to.write(10_000, &pattern(10_000, 3));
    let sge = [source.sge(10_000, 10_000)];
    pair.a.qp.post(Request::read(&sge, target.at(10_000), rkey));
    pair.a.cq.success(1);
    assert!(from.read(10_000, 10_000) == pattern(10_000, 3));
}

fn part_of_a_buffer_is_registered(device: &Device) {
    let pair = Pair::rc(device);
    let buffer = Buffer::new(&pair.pd, 16_384);
    let part = buffer.region(5000, 100);
    equal(
        "addr",
        part.raw().addr,
        buffer.start.wrapping_add(5000).cast(),
    );
    equal("length", part.raw().length, 100);
    equal("pd", part.raw().pd, pair.pd.raw());
    let write = |address| Request::write(&[pair.a.mr.sge(0, 8)], address, part.raw().rkey);
    pair.a.mr.write(0, b"inside!!");
    pair.a.qp.post(write(part.at(92)));
    pair.a.cq.success(1);
    equal("what came", buffer.read(5092, 8), b"inside!!".to_vec());
    pair.a.qp.post(write(part.at(93)));
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

fn region_beyond_the_buffer_is_refused(device: &Device) {
    let pd = Pd::new(device);
    let buffer = Buffer::new(&pd, 8192);
    for (offset, length) in [(0, 8193), (1, 8192), (8192, 1), (0, usize::MAX)] {
        buffer
            .register(&pd, offset, length)
            .fails("ibv_reg_buf_mr", &[libc::EINVAL]);
    }
}

fn region_of_another_domain_is_refused(device: &Device) {
    let (pd, other) = (Pd::new(device), Pd::new(device));
    let buffer = Buffer::new(&pd, 8192);
    buffer
        .register(&other, 0, 8192)
        .fails("ibv_reg_buf_mr", &[libc::EINVAL]);
}

fn memory_of_a_buffer_can_be_registered_as_any_other(device: &Device) {
    let (pd, other) = (Pd::new(device), Pd::new(device));
    let buffer = Buffer::new(&pd, 8192);
    for pd in [&pd, &other] {
        let start = buffer.start.cast();
        let raw = unsafe { ibv_reg_mr(pd.raw(), start, 8192, ALL_ACCESS.0 as c_int) };
        drop(Region(raw.succeeds("ibv_reg_mr")));
    }
}

fn too_large_an_allocation_is_refused(device: &Device) {
    let pd = Pd::new(device);
    drop(Buffer::new(&pd, 1));
    let mut raw = ptr::null_mut();
    for size in [1 << 60, usize::MAX] {
        unsafe { ibv_alloc_buf(pd.raw(), size, &mut raw) }
            .fails("ibv_alloc_buf", &[libc::ENOMEM, libc::EINVAL]);
    }
}

fn many_buffers_exist_at_once(device: &Device) {
    let pd = Pd::new(device);
    let buffers: Vec<_> = (1..200).map(|at| Buffer::new(&pd, at * 100)).collect();
    let regions: Vec<_> = buffers
        .iter()
        .zip(1..)
        .map(|(buffer, at)| buffer.region(0, at * 100))
        .collect();
    for (number, buffer) in buffers.iter().enumerate() {
        buffer.write(0, &pattern((number + 1) * 100, number as u8));
    }
    for (number, buffer) in buffers.iter().enumerate() {
        let length = (number + 1) * 100;
        assert!(buffer.read(0, length) == pattern(length, number as u8));
    }
    drop(regions);
}
