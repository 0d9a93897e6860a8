//! Softroce as a part of a Rust program: verbs that the program calls through the shim of
//! ibverbs-sys, and verbs that its libraries call, reach softroce.

mod library;

use std::env;
use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::process::Command;
use std::ptr;

use ibverbs_sys::*;
use library::library;

fn name(device: *mut ibv_device) -> String {
    // SAFETY: the device is in a list that is not freed yet.
    unsafe { CStr::from_ptr(ibv_get_device_name(device)) }
        .to_str()
        .unwrap()
        .to_owned()
}

/// Runs `test` on softroce's device.
fn with_device(test: impl FnOnce(*mut ibv_device)) {
    softroce::install();
    let mut count = 0;
    // SAFETY: the list has `count` devices until it is freed.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        assert!(!list.is_null());
        let devices = std::slice::from_raw_parts(list, count as usize);
        assert!(
            (*list.add(count as usize)).is_null(),
            "a null pointer ends the list"
        );
        assert_eq!(
            name(*devices.last().unwrap()),
            "softroce0",
            "ours is behind the real ones"
        );
        let ours = devices
            .iter()
            .filter(|&&device| name(device).starts_with("softroce"))
            .count();
        assert_eq!(
            ours, 1,
            "there is one, however often softroce is in the process"
        );
        test(*devices.last().unwrap());
        ibv_free_device_list(list);
    }
}

#[test]
fn every_public_symbol_is_ours() {
    softroce::install();
    softroce::install();
}

#[test]
fn functions_for_files_are_those_of_the_c_library() {
    softroce::install();
    let own = home(every_public_symbol_is_ours as *const c_void);
    assert_eq!(home(ibv_get_device_list as *const c_void), own);
    for name in [
        c"stat",
        c"stat64",
        c"lstat",
        c"lstat64",
        c"fstatat",
        c"fstatat64",
        c"__xstat",
        c"__xstat64",
        c"__lxstat",
        c"__lxstat64",
        c"__fxstatat",
        c"__fxstatat64",
        c"statx",
        c"access",
        c"faccessat",
        c"open",
        c"open64",
        c"openat",
        c"openat64",
        c"fopen",
        c"fopen64",
        c"opendir",
        c"scandir",
        c"scandir64",
        c"readlink",
        c"readlinkat",
        c"realpath",
    ] {
        // SAFETY: the name is a C string.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        assert_ne!(home(function), own, "{name:?}");
    }
}

/// Returns the path of the program or library that contains a function.
fn home(function: *const c_void) -> String {
    // SAFETY: zeroes are valid for all fields: null pointers.
    let mut about: libc::Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be passed, and `about` is valid for writes. The name is a C string of
    // the dynamic linker.
    unsafe {
        assert_ne!(libc::dladdr(function, &mut about), 0);
        CStr::from_ptr(about.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

#[test]
fn the_device_is_listed_and_opened() {
    with_device(|device| {
        // SAFETY: the device is in a list that is not freed, the context is open until it is
        // closed, and all results have room.
        unsafe {
            let context = ibv_open_device(device);
            assert!(!context.is_null());
            assert_eq!((*context).device, device);
            let mut attributes: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &mut attributes), 0);
            assert_eq!(attributes.phys_port_cnt, 1);
            assert_eq!(attributes.node_guid, ibv_get_device_guid(device));
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

#[test]
fn a_program_that_links_and_preloads_softroce_has_one_device() {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_device_is_listed_and_opened"])
        .env("LD_PRELOAD", library())
        .output()
        .unwrap();
    let (told, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}{complained}");
    assert!(told.contains("1 passed"), "{told}");
    assert!(!complained.contains("ld.so"), "{complained}");
}

#[test]
fn queries_of_ports_and_tables() {
    with_device(|device| {
        // SAFETY: as above.
        unsafe {
            let context = ibv_open_device(device);
            let mut port: ibv_port_attr = zeroed();
            assert_eq!(ibv_query_port(context, 0, &mut port), libc::EINVAL);
            assert_eq!(ibv_query_port(context, 2, &mut port), libc::EINVAL);
            assert_eq!(ibv_query_port(context, 1, &mut port), 0);
            assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
            assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_ETHERNET);

            let length = port.gid_tbl_len as usize;
            let mut table: Vec<ibv_gid_entry> = vec![zeroed(); length];
            let read = ibv_query_gid_table(context, table.as_mut_ptr(), length, 0);
            // The addresses of the host follow the loopback address and its tunnel GID.
            let count = usize::try_from(read).expect("a number of entries");
            assert!((2..=length).contains(&count), "{count} of {length} entries");
            assert_eq!(
                ibv_query_gid_table(context, table.as_mut_ptr(), count - 1, 0),
                -(libc::EINVAL as isize),
                "there are more than have room"
            );
            for (index, entry) in table[..count].iter().enumerate() {
                let mut gid: ibv_gid = zeroed();
                assert_eq!(ibv_query_gid(context, 1, index as i32, &mut gid), 0);
                assert_eq!(gid.raw, entry.gid.raw);
                assert_eq!((entry.gid_index as usize, entry.port_num), (index, 1));
                assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
                let mut one: ibv_gid_entry = zeroed();
                assert_eq!(ibv_query_gid_ex(context, 1, index as u32, &mut one, 0), 0);
                assert_eq!(one.gid.raw, gid.raw);
                assert_eq!(
                    ibv_query_gid_ex(context, 1, index as u32, &mut one, 1),
                    libc::EINVAL
                );
            }
            let mut gid: ibv_gid = zeroed();
            assert_eq!(ibv_query_gid(context, 1, length as i32 - 1, &mut gid), 0);
            assert_eq!(gid.raw, [0; 16], "an empty entry");
            let mut one: ibv_gid_entry = zeroed();
            assert_eq!(
                ibv_query_gid_ex(context, 1, length as u32 - 1, &mut one, 0),
                libc::ENODATA
            );
            assert_eq!(ibv_query_gid(context, 1, length as i32, &mut gid), -1);
            assert_eq!(ibv_query_gid(context, 1, -1, &mut gid), -1);
            assert_eq!(ibv_query_gid(context, 2, 0, &mut gid), -1);

            let mut key = 0;
            assert_eq!(ibv_query_pkey(context, 1, 0, &mut key), 0);
            assert_eq!(key, 0xffff);
            assert_eq!(ibv_query_pkey(context, 1, 1, &mut key), -1);
            assert_eq!(ibv_get_pkey_index(context, 1, 0xffff), 0);
            assert_eq!(ibv_get_pkey_index(context, 1, 0x1234), -1);
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

#[test]
fn extended_attributes_begin_with_the_plain_ones() {
    with_device(|device| {
        // SAFETY: as above.
        unsafe {
            let context = ibv_open_device(device);
            let mut plain: ibv_device_attr = zeroed();
            let mut extended: ibv_device_attr_ex = zeroed();
            assert_eq!(ibv_query_device(context, &mut plain), 0);
            assert_eq!(ibv_query_device_ex(context, ptr::null(), &mut extended), 0);
            assert_eq!(extended.orig_attr.max_qp, plain.max_qp);
            assert_eq!(extended.orig_attr.fw_ver, plain.fw_ver);
            let input = ibv_query_device_ex_input { comp_mask: 1 };
            assert_eq!(
                ibv_query_device_ex(context, &input, &mut extended),
                libc::EINVAL
            );

            let mut values: ibv_values_ex = zeroed();
            values.comp_mask = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
            assert_eq!(ibv_query_rt_values_ex(context, &mut values), 0);
            let first = values.raw_clock.tv_nsec;
            assert_eq!(ibv_query_rt_values_ex(context, &mut values), 0);
            assert!(values.raw_clock.tv_nsec >= first);
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

#[test]
fn features_of_hardware_are_unsupported() {
    with_device(|device| {
        // SAFETY: as above; unsupported functions do not read their arguments.
        unsafe {
            let context = ibv_open_device(device);
            let mut init: ibv_wq_init_attr = zeroed();
            assert!(ibv_create_wq(context, &mut init).is_null());
            assert_eq!(*libc::__errno_location(), libc::EOPNOTSUPP);
            let mut init: ibv_counters_init_attr = zeroed();
            assert!(ibv_create_counters(context, &mut init).is_null());
            assert_eq!(*libc::__errno_location(), libc::EOPNOTSUPP);
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}

#[test]
fn a_forked_child_opens_a_device_of_its_own() {
    with_device(|device| {
        // SAFETY: as above. The child only makes calls that are allowed in a child, and ends
        // without destructors.
        unsafe {
            let context = ibv_open_device(device);
            assert!(!context.is_null());
            let child = libc::fork();
            if child == 0 {
                let mut attributes: ibv_device_attr = zeroed();
                let is_refused = ibv_query_device(context, &mut attributes) == libc::EIO;
                let own = ibv_open_device(device);
                let is_open = !own.is_null() && ibv_query_device(own, &mut attributes) == 0;
                libc::_exit(if is_refused && is_open { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            assert_eq!(ibv_close_device(context), 0);
        }
    });
}
