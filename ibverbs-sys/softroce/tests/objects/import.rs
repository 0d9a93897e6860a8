//! Contexts that are made of the command descriptor of another context.

use std::env;
use std::process::Command;

use softroce::{Kind, objects};

use super::*;

/// Variable that tells a process of this test's program the descriptor that it must try to import.
const DESCRIPTOR: &str = "SOFTROCE_TEST_DESCRIPTOR";

/// Returns a duplicate of a context's command descriptor that other programs inherit.
fn duplicate(context: *mut ibv_context) -> i32 {
    // SAFETY: the context is open.
    let duplicate = unsafe { libc::fcntl((*context).cmd_fd, libc::F_DUPFD, 0) };
    assert!(duplicate >= 0, "{}", io::Error::last_os_error());
    duplicate
}

#[test]
fn a_descriptor_number_is_not_valid_in_another_process() {
    if let Ok(descriptor) = env::var(DESCRIPTOR) {
        softroce::install();
        // SAFETY: any number may be passed.
        refused(
            unsafe { ibv_import_device(descriptor.parse().unwrap()) },
            EINVAL,
        );
        with_context(|_| {
            // SAFETY: any number may be passed.
            refused(
                unsafe { ibv_import_device(descriptor.parse().unwrap()) },
                EINVAL,
            );
        });
        return;
    }
    with_context(|context| {
        let descriptor = duplicate(context);
        let name = "import::a_descriptor_number_is_not_valid_in_another_process";
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", name])
            .env(DESCRIPTOR, descriptor.to_string())
            .status();
        assert!(ended.unwrap().success());
        // SAFETY: the descriptor is open, and belongs to this test.
        assert_eq!(unsafe { libc::close(descriptor) }, 0);
    });
}

#[test]
fn an_import_closes_its_descriptor_and_leaves_no_object() {
    with_context(|context| {
        let contexts = objects(Kind::Context);
        let descriptor = duplicate(context);
        // SAFETY: the objects are valid until they are destroyed.
        unsafe {
            let import = ibv_import_device(descriptor);
            assert!(!import.is_null(), "{}", io::Error::last_os_error());
            assert_eq!((*import).cmd_fd, descriptor);
            assert_ne!((*import).async_fd, (*context).async_fd);
            assert!(objects(Kind::Context) > contexts - 1);
            assert_eq!(ibv_close_device(import), 0);
            assert_eq!(libc::fcntl(descriptor, libc::F_GETFD), -1);
        }
    });
}

#[test]
fn an_object_exists_as_long_as_its_last_imported_c_object() {
    with_context(|context| {
        // SAFETY: the objects are valid until they are destroyed.
        unsafe {
            let import = ibv_import_device(duplicate(context));
            assert!(!import.is_null(), "{}", io::Error::last_os_error());
            let pd = ibv_alloc_pd(context);
            let domain = (*pd).handle;
            ibv_unimport_pd(pd);
            let pd = ibv_import_pd(import, domain);
            assert!(!pd.is_null(), "{}", io::Error::last_os_error());

            let mut page = Page::new();
            let mr = ibv_reg_mr(pd, page.start(), 4096, LOCAL_WRITE);
            let (handle, key) = ((*mr).handle, (*mr).lkey);
            ibv_unimport_mr(mr);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            let mr = ibv_import_mr(pd, handle);
            assert_eq!(((*mr).lkey, (*mr).addr), (key, null_mut()));
            // A change by one C object is that of the region, whose new key the other does not
            // have.
            let other = ibv_import_mr(pd, handle);
            assert_eq!(ibv_rereg_mr(mr, 1, null_mut(), page.start(), 64, 0), 0);
            assert_ne!((*mr).lkey, (*other).lkey);
            let last = ibv_import_mr(pd, handle);
            assert_eq!((*mr).lkey, (*last).lkey);
            assert_eq!(ibv_dereg_mr(last), 0);
            assert_eq!(ibv_dereg_mr(mr), ENOENT);
            refused(ibv_import_mr(pd, handle), ENOENT);
            ibv_unimport_mr(mr);
            ibv_unimport_mr(other);
            assert_eq!(ibv_dealloc_pd(pd), 0);
            refused(ibv_import_pd(import, domain), ENOENT);
            assert_eq!(ibv_close_device(import), 0);
        }
    });
}
