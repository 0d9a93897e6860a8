//! Parsers of the values of environment variables. If a value is invalid, the error text describes
//! the expected value.

use std::net::IpAddr;
use std::time::Duration;

use ibverbs_sys::ibv_event_type;

use super::{Scheduled, Segmentation, Way};
use crate::fault::{Errno, Failure, Verb};
use crate::proto::Mtu;

pub(super) fn device(value: &str) -> Result<String, String> {
    // The name is stored in a C array of 64 bytes, and programs build paths from it.
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if value.len() < 64 && value.chars().all(plain) {
        Ok(value.to_owned())
    } else {
        Err("a name of up to 63 letters, digits, '_', '-' and '.' is expected".to_owned())
    }
}

pub(super) fn addresses(value: &str) -> Result<Vec<IpAddr>, String> {
    let addresses = list(value, |address| {
        address.parse::<IpAddr>().map_err(|_| {
            format!(
                "{address:?} is no IPv4 or IPv6 address; SOFTROCE_NETDEV takes names of interfaces"
            )
        })
    })?;
    let of_family = |v4: bool| addresses.iter().filter(|a| a.is_ipv4() == v4).count();
    if addresses.iter().any(IpAddr::is_unspecified) {
        Err("an address that packets can be sent to is expected".to_owned())
    } else if of_family(true) > 1 || of_family(false) > 1 {
        Err("at most one IPv4 and one IPv6 address are expected".to_owned())
    } else {
        Ok(addresses)
    }
}

/// Parses names of network interfaces, separated by commas. Fails if a name is too long or contains
/// `/` or a space.
pub(super) fn interfaces(value: &str) -> Result<Vec<String>, String> {
    list(value, |name| {
        // The kernel's limit, IFNAMSIZ.
        if (1..16).contains(&name.len()) && !name.contains(['/', ' ']) {
            Ok(name.to_owned())
        } else {
            Err("names of network interfaces are expected, with commas".to_owned())
        }
    })
}

pub(super) fn port(value: &str) -> Result<u16, String> {
    match value.parse() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err("a UDP port from 1 to 65535 is expected".to_owned()),
    }
}

pub(super) fn mtu(value: &str) -> Result<Mtu, String> {
    [
        Mtu::Mtu256,
        Mtu::Mtu512,
        Mtu::Mtu1024,
        Mtu::Mtu2048,
        Mtu::Mtu4096,
    ]
    .into_iter()
    .find(|mtu| mtu.bytes().to_string() == value)
    .ok_or_else(|| "256, 512, 1024, 2048 or 4096 is expected".to_owned())
}

pub(super) fn segmentation(value: &str) -> Result<Segmentation, String> {
    match value {
        "never" => Ok(Segmentation::Never),
        "peers" => Ok(Segmentation::Peers),
        "always" => Ok(Segmentation::Always),
        _ => Err("never, peers or always is expected".to_owned()),
    }
}

pub(super) fn bytes(value: &str) -> Result<usize, String> {
    let largest = 1 << 30;
    match value.parse() {
        Ok(bytes) if bytes <= largest => Ok(bytes),
        _ => Err(format!("a number of bytes up to {largest} is expected")),
    }
}

pub(super) fn way(value: &str) -> Result<Way, String> {
    match value {
        "direct" => Ok(Way::Direct),
        "shared" => Ok(Way::Shared),
        "udp" => Ok(Way::Udp),
        _ => Err("direct, shared or udp is expected".to_owned()),
    }
}

pub(super) fn number(value: &str) -> Result<u64, String> {
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    }
    .map_err(|_| "a number below 2^64 is expected".to_owned())
}

/// Parses a fraction, written as a number from 0 to 1 or as a percentage. Returns a number from 0
/// to 1.
pub(super) fn rate(value: &str) -> Result<f64, String> {
    let (digits, whole) = match value.strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (value, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(rate) if (0.0..=whole).contains(&rate) => Ok(rate / whole),
        _ => Err("a part from 0 to 1, or from 0% to 100%, is expected".to_owned()),
    }
}

pub(super) fn duration(value: &str) -> Result<Duration, String> {
    let expected = || "a time as 20us, 1.5ms or 1s is expected, at most an hour".to_owned();
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(expected()),
    };
    match digits.parse::<f64>() {
        Ok(count) if (0.0..=3600.0).contains(&(count * unit)) => {
            Ok(Duration::from_secs_f64(count * unit))
        }
        _ => Err(expected()),
    }
}

pub(super) fn failures(value: &str) -> Result<Vec<Failure>, String> {
    list(value, |failure| {
        let parts: Vec<&str> = failure.split(':').collect();
        let [verb, call, errno] = parts[..] else {
            return Err(format!("verb:n:errno is expected in place of {failure:?}"));
        };
        Ok(Failure {
            verb: Verb::named(verb).ok_or_else(|| format!("{verb:?} is no verb that can fail"))?,
            call: match call.parse() {
                Ok(call) if call > 0 => call,
                _ => return Err(format!("{call:?} counts no calls; the first one is 1")),
            },
            errno: Errno::named(errno).ok_or_else(|| format!("{errno:?} is no errno"))?,
        })
    })
}

pub(super) fn events(value: &str) -> Result<Vec<(Duration, Scheduled)>, String> {
    list(value, |event| {
        let (name, time) = at_time(event)?;
        let short = name.strip_prefix("IBV_EVENT_").unwrap_or(name);
        let kind = EVENTS
            .iter()
            .find_map(|&(known, kind)| (known == short).then_some(kind))
            .ok_or_else(|| {
                let names: Vec<&str> = EVENTS.iter().map(|&(name, _)| name).collect();
                format!("{name:?} is none of IBV_EVENT_ {}", names.join(", "))
            })?;
        Ok((time, Scheduled::Raise(kind)))
    })
}

/// Names of the events of the port or the device that `SOFTROCE_EVENT` can raise, without the
/// prefix `IBV_EVENT_`.
const EVENTS: [(&str, ibv_event_type); 8] = [
    ("DEVICE_FATAL", ibv_event_type::IBV_EVENT_DEVICE_FATAL),
    ("PORT_ACTIVE", ibv_event_type::IBV_EVENT_PORT_ACTIVE),
    ("PORT_ERR", ibv_event_type::IBV_EVENT_PORT_ERR),
    ("LID_CHANGE", ibv_event_type::IBV_EVENT_LID_CHANGE),
    ("PKEY_CHANGE", ibv_event_type::IBV_EVENT_PKEY_CHANGE),
    ("SM_CHANGE", ibv_event_type::IBV_EVENT_SM_CHANGE),
    (
        "CLIENT_REREGISTER",
        ibv_event_type::IBV_EVENT_CLIENT_REREGISTER,
    ),
    ("GID_CHANGE", ibv_event_type::IBV_EVENT_GID_CHANGE),
];

pub(super) fn links(value: &str) -> Result<Vec<(Duration, Scheduled)>, String> {
    list(value, |change| {
        let (state, time) = at_time(change)?;
        match state {
            "up" => Ok((time, Scheduled::Link { up: true })),
            "down" => Ok((time, Scheduled::Link { up: false })),
            _ => Err(format!("up or down is expected in place of {state:?}")),
        }
    })
}

fn at_time(value: &str) -> Result<(&str, Duration), String> {
    let (what, time) = value
        .split_once('@')
        .ok_or_else(|| format!("what@time is expected in place of {value:?}"))?;
    Ok((what, duration(time)?))
}

fn list<T>(value: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    value.split(',').map(|item| parse(item.trim())).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Config;
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::parse(|name| {
            variables
                .iter()
                .find_map(|&(known, value)| (known == name).then(|| value.to_owned()))
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn without_variables_the_configuration_is_the_default() {
        assert_eq!(parse(&[]), Ok(Config::default()));
        assert_eq!(parse(&[("SOFTROCE_LOSS", "")]), Ok(Config::default()));
    }

    #[test]
    fn every_variable_is_parsed() {
        let config = parse(&[
            ("SOFTROCE_DEVICE", "rocket7"),
            ("SOFTROCE_ADDRESS", "10.0.0.1, fe80::1"),
            ("SOFTROCE_NETDEV", "eth0, wlan0"),
            ("SOFTROCE_PORT", "5000"),
            ("SOFTROCE_MTU", "1024"),
            ("SOFTROCE_GSO", "always"),
            ("SOFTROCE_RCVBUF", "212992"),
            ("SOFTROCE_PATH", "udp"),
            ("SOFTROCE_LOSS", "2%"),
            ("SOFTROCE_DUPLICATE", "0.25"),
            ("SOFTROCE_REORDER", "1"),
            ("SOFTROCE_CORRUPT", "0"),
            ("SOFTROCE_LATENCY", "1.5ms"),
            ("SOFTROCE_SEED", "0xff"),
            ("SOFTROCE_FAIL", "ibv_reg_mr:2:ENOMEM,create_qp:1:22"),
            ("SOFTROCE_EVENT", "IBV_EVENT_GID_CHANGE@50ms"),
            ("SOFTROCE_LINK", "down@1s,up@2s"),
            ("SOFTROCE_PCAP", "packets.pcap"),
        ])
        .unwrap();
        assert_eq!(config.device, "rocket7");
        assert_eq!(config.addresses.len(), 2);
        assert_eq!(config.interfaces.unwrap(), ["eth0", "wlan0"]);
        assert_eq!((config.port, config.mtu), (5000, Some(Mtu::Mtu1024)));
        assert_eq!(config.segmentation, Segmentation::Always);
        assert_eq!(config.receive_buffer, 212_992);
        assert_eq!(config.path, Some(Way::Udp));
        assert_eq!(
            (config.network.loss, config.network.duplicate),
            (0.02, 0.25)
        );
        assert_eq!((config.network.reorder, config.network.corrupt), (1.0, 0.0));
        assert_eq!(config.network.latency, Duration::from_micros(1500));
        assert_eq!(config.network.seed, 255);
        let [first, second] = config.failures[..] else {
            panic!("{:?}", config.failures)
        };
        assert_eq!(
            (first.verb, first.call, first.errno.0),
            (Verb::RegMr, 2, libc::ENOMEM)
        );
        assert_eq!(
            (second.verb, second.call, second.errno.0),
            (Verb::CreateQp, 1, libc::EINVAL)
        );
        assert_eq!(
            config.schedule,
            [
                (
                    Duration::from_millis(50),
                    Scheduled::Raise(ibv_event_type::IBV_EVENT_GID_CHANGE)
                ),
                (Duration::from_secs(1), Scheduled::Link { up: false }),
                (Duration::from_secs(2), Scheduled::Link { up: true }),
            ]
        );
        assert_eq!(config.capture, Some(PathBuf::from("packets.pcap")));
    }

    #[test]
    fn an_error_names_the_variable_its_value_and_what_is_expected() {
        for (variable, value, expected) in [
            ("SOFTROCE_DEVICE", "a/b", "letters"),
            ("SOFTROCE_ADDRESS", "eth0", "no IPv4 or IPv6 address"),
            ("SOFTROCE_ADDRESS", "0.0.0.0", "can be sent to"),
            ("SOFTROCE_ADDRESS", "10.0.0.1,10.0.0.2", "at most one"),
            (
                "SOFTROCE_NETDEV",
                "eth0,,eth1",
                "names of network interfaces",
            ),
            (
                "SOFTROCE_NETDEV",
                "../../etc",
                "names of network interfaces",
            ),
            ("SOFTROCE_PORT", "0", "1 to 65535"),
            ("SOFTROCE_MTU", "1500", "1024"),
            ("SOFTROCE_GSO", "yes", "never, peers or always"),
            ("SOFTROCE_RCVBUF", "-1", "bytes"),
            ("SOFTROCE_LOSS", "101%", "100%"),
            ("SOFTROCE_LOSS", "NaN", "from 0 to 1"),
            ("SOFTROCE_LATENCY", "5", "20us"),
            ("SOFTROCE_LATENCY", "-5us", "20us"),
            ("SOFTROCE_LATENCY", "2µ", "20us"),
            ("SOFTROCE_SEED", "seven", "2^64"),
            ("SOFTROCE_FAIL", "ibv_reg_mr:2", "verb:n:errno"),
            ("SOFTROCE_FAIL", "ibv_frobnicate:2:ENOMEM", "no verb"),
            ("SOFTROCE_FAIL", "ibv_reg_mr:0:ENOMEM", "first one is 1"),
            ("SOFTROCE_FAIL", "ibv_reg_mr:1:EWHAT", "no errno"),
            ("SOFTROCE_EVENT", "IBV_EVENT_QP_FATAL@1s", "none of"),
            ("SOFTROCE_EVENT", "IBV_EVENT_PORT_ERR", "what@time"),
            ("SOFTROCE_LINK", "gone@1s", "up or down"),
        ] {
            let error = parse(&[(variable, value)]).unwrap_err();
            assert!(
                error.starts_with(&format!("{variable}={value}: ")),
                "{error}"
            );
            assert!(error.contains(expected), "{error}");
        }
    }
}
