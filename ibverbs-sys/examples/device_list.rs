//! Prints the name of each RDMA device.
#![allow(clippy::undocumented_unsafe_blocks)]

use ibverbs_sys::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};

fn main() {
    let mut num_devices = 0;
    let list = unsafe { ibv_get_device_list(&mut num_devices) };
    assert!(num_devices != 0, "IB device not found!");

    let devices = unsafe { std::slice::from_raw_parts(list, num_devices as usize) };
    for device in devices {
        let name = unsafe { std::ffi::CStr::from_ptr(ibv_get_device_name(*device)) };
        println!("device name: {}", name.to_string_lossy());
    }

    unsafe { ibv_free_device_list(list) };
}
