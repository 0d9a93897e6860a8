//! The description of a device: the text, compared with that of the C program `ibv_devinfo`, and
//! the typed values.

mod common;

#[path = "../examples/devinfo.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod devinfo;
#[path = "../examples/show_gids.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod show_gids;

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU8, Ordering};

use common::context;
use common::program::with_device;
use devinfo::Wanted;
use rdma_core::Error;
use rdma_core::device::{
    AtomicCapability, DeviceCapabilities, GidType, LinkLayer, NodeType, PartitionKey,
    PhysicalState, PortFlags, PortState, Protocol, TransportType,
};

/// The environment variable with the directory for the texts of both programs.
const TEXTS: &str = "DEVICE_INFO_TEXTS";

/// Compares the text of the example with that of the C program line by line, and reports the first
/// line that differs.
///
/// softroce exists once per process, and its GUID and addresses differ between processes. Therefore
/// one process must run both programs: this test starts itself again, with only the test called
/// `test`. The child writes the text of the example, and then executes the C program.
#[track_caller]
fn compare(test: &str, options: &[&str]) {
    if let Some(directory) = env::var_os(TEXTS) {
        both(&PathBuf::from(directory), options);
    }
    let directory = env::temp_dir().join(format!("{test}-{}-{}", process::id(), options.concat()));
    fs::create_dir_all(&directory).unwrap();
    let mut again = Command::new(env::current_exe().unwrap());
    let again = again.args([test, "--exact", "--nocapture"]);
    // On the addresses of the host, the GIDs depend on the other processes that use softroce.
    let again = again.env("SOFTROCE_ADDRESS", unused_address());
    let output = again.env(TEXTS, &directory).output().unwrap();
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (ours, theirs) = (read("ours"), read("theirs"));
    fs::remove_dir_all(&directory).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{options:?}: {errors}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!theirs.is_empty(), "{options:?}: {errors}");
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {} of {options:?}", number + 1);
    }
    assert_eq!(ours, theirs);
}

/// Returns a loopback address that no other process uses.
fn unused_address() -> String {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = process::id().to_be_bytes();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{high}.{low}", 200 + call % 50)
}

/// Writes the text of the example, and executes the C program, which writes its text.
fn both(directory: &Path, options: &[&str]) -> ! {
    let context = context();
    let options: Vec<&str> = ["-d", context.name()]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    let wanted = Wanted::from_arguments(options.iter().map(ToString::to_string)).unwrap();
    let text = devinfo::described(&wanted).unwrap();
    fs::write(directory.join("ours"), text).unwrap();
    let mut command = Command::new("ibv_devinfo");
    let theirs = fs::File::create(directory.join("theirs")).unwrap();
    let command = with_device(command.args(options).stdout(theirs), &context);
    let error = command.env_remove(TEXTS).exec();
    panic!("ibv_devinfo, of Debian's package ibverbs-utils: {error}")
}

#[test]
fn devinfo_prints_what_ibv_devinfo_prints() {
    compare("devinfo_prints_what_ibv_devinfo_prints", &[]);
}

#[test]
fn verbose_devinfo_prints_what_ibv_devinfo_v_prints() {
    compare("verbose_devinfo_prints_what_ibv_devinfo_v_prints", &["-v"]);
}

#[test]
fn devinfo_of_one_port_prints_only_that() {
    let options = ["--ib-port=1", "--verbose"];
    compare("devinfo_of_one_port_prints_only_that", &options);
}

#[test]
fn devinfo_lists_what_ibv_devinfo_lists() {
    let context = context();
    let mut command = Command::new("ibv_devinfo");
    let output = with_device(command.arg("-l"), &context).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let wanted = Wanted::from_arguments(["-l".to_owned()]).unwrap();
    let text = devinfo::described(&wanted).unwrap();
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter(|line| line.starts_with('\t'));
        // The C program finds softroce only if softroce is the device under test.
        let known = |name: &&str| context.device().is_emulated() || !name.contains("softroce");
        let mut names: Vec<_> = names.filter(known).map(str::to_owned).collect();
        // The order of the names is that of a directory, so it is not compared.
        names.sort_unstable();
        names
    };
    assert_eq!(names(&text), names(&expected));
    assert!(names(&text).contains(&format!("\t{}", context.name())));
    let devices = rdma_core::devices().unwrap().len();
    assert!(text.starts_with(&format!("{devices} HCA")), "{text}");
    assert!(text.ends_with("\n\n") && expected.ends_with("\n\n"));
}

#[test]
fn options_are_read_as_c_reads_them() {
    let read = |text: &str| {
        let words = text.split_whitespace().map(str::to_owned);
        Wanted::from_arguments(words)
    };
    let all = Wanted {
        device: Some("mlx5_0".into()),
        port: Some(2),
        list: false,
        verbose: true,
    };
    for text in [
        "-d mlx5_0 -i 2 -v",
        "-vdmlx5_0 -i2",
        "--ib-dev=mlx5_0 --ib-port 2 --verbose",
    ] {
        assert_eq!(read(text), Ok(all.clone()), "{text}");
    }
    for text in ["-i 0", "-i x", "-d", "-q", "--what", "mlx5_0"] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn a_port_that_is_not_there_is_not_described() {
    let context = context();
    let ports = context.attributes().unwrap().ports();
    let info = context.info().unwrap();
    let error = info.only_port(ports + 1).unwrap_err();
    assert!(matches!(error, Error::UnknownPort { .. }), "{error:?}");
    let wanted = Wanted {
        device: Some("no_such_device".into()),
        ..Wanted::default()
    };
    let error = devinfo::described(&wanted).unwrap_err();
    assert!(matches!(error, Error::UnknownDevice { .. }), "{error:?}");
}

#[test]
fn gids_are_shown_with_their_interfaces() {
    let context = context();
    let text = show_gids::table(&[context.device()]).unwrap();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("DEV\tPORT\tINDEX\tGID"));
    assert!(lines.next().unwrap().starts_with("---\t"));
    let gids = context.gids().unwrap();
    for entry in &gids {
        let line = lines.next().unwrap();
        let columns: Vec<_> = line.split_whitespace().collect();
        let (port, index) = (entry.port.to_string(), entry.index.to_string());
        assert_eq!(columns[..3], [context.name(), &port, &index], "{line}");
        let address: std::net::Ipv6Addr = columns[3].parse().unwrap();
        assert_eq!(address, entry.gid.to_ipv6(), "{line}");
        if let Some(address) = entry.gid.to_ipv4() {
            assert_eq!(columns[4], address.to_string(), "{line}");
        }
        let version = match entry.kind {
            GidType::RoceV1 => "v1",
            _ => "v2",
        };
        assert!(columns.contains(&version), "{line}");
        let interface = entry.interface_name().expect("an interface");
        assert_eq!(columns.last(), Some(&&*interface), "{line}");
    }
    assert_eq!(lines.next(), Some(&*format!("n_gids_found={}", gids.len())));
}

#[test]
fn device_attributes_are_typed() {
    let context = context();
    let attributes = context.attributes().unwrap();
    let raw = attributes.as_raw();
    assert_eq!(attributes.node_guid(), context.device().guid());
    assert_eq!(attributes.node_guid().to_be(), raw.node_guid);
    assert_eq!(attributes.system_image_guid().to_be(), raw.sys_image_guid);
    assert!(attributes.page_sizes() & 4096 != 0, "pages of 4 KiB");
    assert_ne!(attributes.atomics(), AtomicCapability::None);
    let flags = attributes.capabilities();
    assert_eq!(flags.bits(), u64::from(raw.device_cap_flags));
    assert!(flags.contains(DeviceCapabilities::PORT_ACTIVE_EVENT));
    for limit in [
        attributes.max_windows(),
        attributes.max_protection_domains(),
        attributes.max_read_elements(),
        attributes.max_incoming_reads_in_all(),
        attributes.max_multicast_groups(),
        attributes.max_queue_pairs_per_group(),
        attributes.max_group_members(),
        attributes.max_address_handles(),
        attributes.max_shared_receive_queues(),
        attributes.max_shared_receive_requests(),
        attributes.max_shared_receive_elements(),
        attributes.max_pkeys().into(),
    ] {
        assert!(limit > 0, "{raw:?}");
    }
    assert!(attributes.ack_delay().as_nanos() >= 4096);
}

#[test]
fn extended_attributes_hold_the_plain_ones_and_more() {
    let context = context();
    let attributes = context.extended_attributes().unwrap();
    let plain = context.attributes().unwrap();
    assert_eq!(attributes.max_queue_pairs(), plain.max_queue_pairs());
    assert_eq!(attributes.firmware_version(), plain.firmware_version());
    assert!(attributes.capabilities().contains(plain.capabilities()));
    assert_eq!(attributes.all_ports(), u32::from(plain.ports()));
    let raw = attributes.as_raw();
    // A value is `None` if the device does not report it, and equals the reported value otherwise.
    let told = [
        (
            attributes.timestamp_mask().is_some(),
            raw.completion_timestamp_mask != 0,
        ),
        (
            attributes.clock_kilohertz().is_some(),
            raw.hca_core_clock != 0,
        ),
        (
            attributes.segmentation().is_some(),
            raw.tso_caps.max_tso != 0,
        ),
        (
            attributes.receive_side_scaling().is_some(),
            raw.rss_caps.supported_qpts != 0,
        ),
        (
            attributes.pacing().is_some(),
            raw.packet_pacing_caps.qp_rate_limit_max != 0,
        ),
        (
            attributes.tag_matching().is_some(),
            raw.tm_caps.max_num_tags != 0,
        ),
        (
            attributes.moderation().is_some(),
            raw.cq_mod_caps.max_cq_count != 0,
        ),
    ];
    for (at, (typed, raw)) in told.into_iter().enumerate() {
        assert_eq!(typed, raw, "{at}");
    }
    assert_eq!(attributes.max_device_memory(), raw.max_dm_size);
    assert_eq!(attributes.raw_packets().bits(), raw.raw_packet_caps);
    assert_eq!(attributes.max_receive_work_queues(), raw.max_wq_type_rq);
    assert_eq!(
        attributes.pci_atomics().swap.bits(),
        raw.pci_atomic_caps.swap
    );
    let paging = attributes.on_demand_paging();
    assert_eq!(paging.general.bits(), raw.odp_caps.general_caps);
    assert_eq!(paging.xrc.bits(), raw.xrc_odp_caps);
    let paged = [
        paging.reliable_connected,
        paging.unreliable_connected,
        paging.datagram,
    ];
    for operations in paged {
        assert!(operations.is_empty() || !paging.general.is_empty());
    }
}

#[test]
fn transport_and_protocols_are_distinguished() {
    let context = context();
    let device = context.device();
    assert_eq!(device.transport(), TransportType::InfiniBand);
    assert_eq!(device.node_type(), NodeType::ChannelAdapter);
    assert!(!device.is_iwarp());
    let protocols = context.protocols(1).unwrap();
    // Every device of these tests uses RoCE; only a device of the kernel supports RoCE v1.
    assert!(protocols.contains(&Protocol::RoceV2), "{protocols:?}");
    let kinds = context.gids().unwrap();
    let has_v1 = kinds.iter().any(|entry| entry.kind == GidType::RoceV1);
    assert_eq!(protocols.contains(&Protocol::RoceV1), has_v1);
    assert!(!protocols.contains(&Protocol::Iwarp));
    assert!(!protocols.contains(&Protocol::InfiniBand));
}

#[test]
fn device_is_found_by_its_files_or_has_none() {
    let device = context().device();
    match device.path() {
        Some(path) => {
            assert!(path.is_dir(), "{}", path.display());
            assert_eq!(path.file_name().unwrap().to_str(), Some(&*device.name()));
            assert!(device.description().is_some());
            assert!(device.index().is_some());
        }
        None => {
            assert!(device.is_emulated());
            assert_eq!((device.description(), device.index()), (None, None));
            assert_eq!((device.board_id(), device.numa_node()), (None, None));
        }
    }
}

#[test]
fn ports_have_speed_width_and_state() {
    let context = context();
    for port in context.ports().unwrap() {
        let raw = port.as_raw();
        assert_eq!(port.link_layer(), LinkLayer::Ethernet);
        assert!(port.speed().megabits_per_second().is_some(), "{raw:?}");
        assert!(port.width().lanes().is_some(), "{raw:?}");
        let rate = port.megabits_per_second().unwrap();
        assert!((2_500..=2_400_000).contains(&rate), "{rate}");
        if port.state() == PortState::Active {
            assert_eq!(port.physical_state(), PhysicalState::LinkUp);
        }
        assert_eq!(port.capabilities().bits(), raw.port_cap_flags);
        assert_eq!(port.capabilities2().bits(), raw.port_cap_flags2);
        // Every address on RoCE needs a global route header (IBTA annex A17).
        assert!(port.flags().contains(PortFlags::GRH_REQUIRED), "{raw:?}");
        // There is no subnet manager on Ethernet.
        assert_eq!((port.lid(), port.subnet_manager_lid()), (0, 0));
        assert_eq!(port.lids(), 0..=0);
        // The counts depend on earlier packets, so they are compared with the raw values.
        let bad = (port.bad_pkeys(), port.bad_qkeys());
        assert_eq!(bad, (raw.bad_pkey_cntr, raw.qkey_viol_cntr));
        assert!(port.virtual_lanes().is_some(), "{raw:?}");
    }
}

#[test]
fn one_gid_equals_the_entry_of_the_table() {
    let context = context();
    for entry in context.gids().unwrap() {
        assert_eq!(context.gid(entry.port, entry.index).unwrap(), entry);
        let name = entry.interface_name().expect("RoCE has an interface");
        let path = format!("/sys/class/net/{name}");
        assert!(std::path::Path::new(&path).exists(), "{path}");
    }
    let beyond = context.port(1).unwrap().gid_table_len() as u32;
    for index in [beyond, u32::MAX] {
        let error = context.gid(1, index).unwrap_err();
        let known = matches!(error, Error::UnknownGidIndex { .. });
        assert!(known, "{index}: {error:?}");
    }
    let error = context.gid(77, 0).unwrap_err();
    assert!(
        matches!(error, Error::UnknownPort { port: 77, .. }),
        "{error:?}"
    );
}

#[test]
fn pkey_table_begins_with_the_default_partition() {
    let context = context();
    let keys = context.pkeys(1).unwrap();
    assert_eq!(keys.len(), context.port(1).unwrap().pkey_table_len());
    // The only entry of RoCE (IBTA annex A17.7.1).
    assert_eq!(keys[0], PartitionKey::DEFAULT);
    assert!(keys[0].is_full_member());
    let error = context.pkeys(2).unwrap_err();
    assert!(matches!(error, Error::UnknownPort { .. }), "{error:?}");
}

#[test]
fn the_clock_advances_or_is_unsupported() {
    let context = context();
    let attributes = context.extended_attributes().unwrap();
    let Some(clock) = common::where_supported(context.clock()) else {
        assert_eq!(attributes.clock_kilohertz(), None);
        return;
    };
    assert_eq!(Some(clock.kilohertz()), attributes.clock_kilohertz());
    let first = clock.now().unwrap();
    let later = common::eventually("the clock goes on", || {
        Some(clock.now().unwrap()).filter(|&now| now != first)
    });
    let between = clock.between(first, later);
    assert!(!between.is_zero());
    // The elapsed time is less than one period of the clock.
    assert!(between < clock.duration(clock.mask()), "{between:?}");
    assert_eq!(clock.between(later, later), std::time::Duration::ZERO);
}

#[test]
fn completion_vectors_are_counted() {
    let context = context();
    let vectors = context.completion_vectors();
    assert!(vectors >= 1);
    let last = context.completion_queue(4).vector(vectors - 1).build();
    last.expect("the last vector");
}
