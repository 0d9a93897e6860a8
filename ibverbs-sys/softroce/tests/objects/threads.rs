//! Concurrent use of verbs by many threads.

use super::*;

/// Checks that many threads can create and destroy objects at the same time.
#[test]
fn threads_do_not_affect_each_other() {
    struct Shared(*mut ibv_context);
    // SAFETY: verbs may be called from any thread.
    unsafe impl Sync for Shared {}
    with_context(|context| {
        let shared = &Shared(context);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let context = shared.0;
                    let mut page = Page::new();
                    for _ in 0..50 {
                        // SAFETY: all objects are valid until they are destroyed.
                        unsafe {
                            let pd = ibv_alloc_pd(context);
                            let mr = ibv_reg_mr(pd, page.start(), 4096, LOCAL_WRITE);
                            let channel = ibv_create_comp_channel(context);
                            let cq = ibv_create_cq(context, 4, null_mut(), channel, 0);
                            let srq = ibv_create_srq(pd, &mut srq_attr(4, 1));
                            let objects = [mr.is_null(), cq.is_null(), srq.is_null()];
                            assert_eq!(objects, [false; 3]);
                            assert_eq!(ibv_destroy_srq(srq), 0);
                            assert_eq!(ibv_destroy_cq(cq), 0);
                            assert_eq!(ibv_destroy_comp_channel(channel), 0);
                            assert_eq!(ibv_dereg_mr(mr), 0);
                            assert_eq!(ibv_dealloc_pd(pd), 0);
                        }
                    }
                });
            }
        });
    });
}
