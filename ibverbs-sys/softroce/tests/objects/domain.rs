//! Dependencies of objects on each other, and objects of different domains that cannot be combined.

use super::*;

#[test]
fn domains_in_use_stay() {
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let mut init = ibv_td_init_attr { comp_mask: 0 };
            let td = ibv_alloc_td(context, &raw mut init);
            assert!(!td.is_null());
            let mut wrong = ibv_td_init_attr { comp_mask: 1 };
            refused(ibv_alloc_td(context, &raw mut wrong), EINVAL);

            let mut attr: ibv_parent_domain_init_attr = zeroed();
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.pd = pd;
            attr.td = td;
            attr.comp_mask = 1 << 9;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.comp_mask =
                ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.comp_mask = 0;
            let parent = ibv_alloc_parent_domain(context, &raw mut attr);
            assert!(!parent.is_null());
            assert_eq!(ibv_dealloc_td(td), EBUSY);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);

            let mut page = Page::new();
            let mr = ibv_reg_mr(parent, page.start(), 64, LOCAL_WRITE);
            assert!(!mr.is_null());
            assert_eq!(ibv_dealloc_pd(parent), EBUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);

            attr.pd = parent;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            assert_eq!(ibv_dealloc_pd(parent), 0);
            assert_eq!(ibv_dealloc_td(td), 0);
        }
    });
}

#[test]
fn objects_of_another_context_are_refused() {
    with_domain(|context, pd| {
        with_domain(|other, other_pd| {
            // SAFETY: all objects are valid until they are destroyed.
            unsafe {
                let channel = ibv_create_comp_channel(other);
                refused(ibv_create_cq(context, 1, null_mut(), channel, 0), EINVAL);
                assert_eq!(ibv_destroy_comp_channel(channel), 0);
                let mut attr: ibv_parent_domain_init_attr = zeroed();
                attr.pd = other_pd;
                refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
                let mut page = Page::new();
                let mr = ibv_reg_mr(pd, page.start(), 64, LOCAL_WRITE);
                let error = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
                assert_eq!(ibv_rereg_mr(mr, 2, other_pd, null_mut(), 0, 0), error);
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
        });
    });
}
