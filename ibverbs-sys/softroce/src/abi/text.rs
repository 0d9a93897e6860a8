//! Names of enumerators, and conversions of rates. Programs and scripts compare these strings, so
//! they equal the strings of the real library. Values that are not in the tables are passed to the
//! real library, which may be newer.

use std::ffi::CStr;

use ibverbs_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status};
use libc::{c_char, c_int};

use super::real::call;

/// Returns the description of a work completion status (`ibv_wc_status_str(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    match name(&STATUSES, i64::from(status.0)) {
        Some(name) => name,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_wc_status_str(status) else c"unknown".as_ptr()) },
    }
}

/// Returns the description of an asynchronous event (`ibv_event_type_str(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    match name(&EVENTS, i64::from(event.0)) {
        Some(name) => name,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_event_type_str(event) else c"unknown".as_ptr()) },
    }
}

/// Returns the description of a node type (`ibv_node_type_str(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    match name(&NODE_TYPES, i64::from(node_type.0)) {
        Some(name) => name,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_node_type_str(node_type) else c"unknown".as_ptr()) },
    }
}

/// Returns the description of a port state (`ibv_port_state_str(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    match name(&PORT_STATES, i64::from(port_state.0)) {
        Some(name) => name,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_port_state_str(port_state) else c"unknown".as_ptr()) },
    }
}

/// Converts a rate to a multiple of 2.5 Gbit/s, or to -1 if the rate is unknown
/// (`ibv_rate_to_mult(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    match find(|entry| entry.rate == rate) {
        Some(entry) => entry.multiple.unwrap_or(-1),
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_rate_to_mult(rate) else -1) },
    }
}

/// Converts a multiple of 2.5 Gbit/s to a rate (`mult_to_ibv_rate(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    match find(|entry| entry.multiple == Some(mult)) {
        Some(entry) => entry.rate,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(mult_to_ibv_rate(mult) else ibv_rate::IBV_RATE_MAX) },
    }
}

/// Converts a rate to Mbit/s, or to -1 if the rate is unknown (`ibv_rate_to_mbps(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    match find(|entry| entry.rate == rate) {
        Some(entry) => entry.megabits,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(ibv_rate_to_mbps(rate) else -1) },
    }
}

/// Converts Mbit/s to a rate (`mbps_to_ibv_rate(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    match find(|entry| entry.megabits == mbps) {
        Some(entry) => entry.rate,
        // SAFETY: the function accepts any number.
        None => unsafe { call!(mbps_to_ibv_rate(mbps) else ibv_rate::IBV_RATE_MAX) },
    }
}

fn name(names: &[&'static CStr], number: i64) -> Option<*const c_char> {
    let name = names.get(usize::try_from(number).ok()?)?;
    (!name.is_empty()).then_some(name.as_ptr())
}

struct Rate {
    rate: ibv_rate,
    /// The rate as a multiple of 2.5 Gbit/s. The multiple for 28 Gbit/s is rounded. `None` if the
    /// verbs API defines no multiple for the rate.
    multiple: Option<c_int>,
    megabits: c_int,
}

fn find(wanted: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| wanted(rate))
}

const fn rate(rate: ibv_rate, multiple: Option<c_int>, megabits: c_int) -> Rate {
    Rate {
        rate,
        multiple,
        megabits,
    }
}

/// Rates of `ibv_rate` with their bit rates on the wire in Mbit/s. These include the bits that the
/// line encoding adds, so a rate of 100 Gbit/s has the value 103,125.
static RATES: [Rate; 23] = [
    rate(ibv_rate::IBV_RATE_2_5_GBPS, Some(1), 2_500),
    rate(ibv_rate::IBV_RATE_5_GBPS, Some(2), 5_000),
    rate(ibv_rate::IBV_RATE_10_GBPS, Some(4), 10_000),
    rate(ibv_rate::IBV_RATE_20_GBPS, Some(8), 20_000),
    rate(ibv_rate::IBV_RATE_30_GBPS, Some(12), 30_000),
    rate(ibv_rate::IBV_RATE_40_GBPS, Some(16), 40_000),
    rate(ibv_rate::IBV_RATE_60_GBPS, Some(24), 60_000),
    rate(ibv_rate::IBV_RATE_80_GBPS, Some(32), 80_000),
    rate(ibv_rate::IBV_RATE_120_GBPS, Some(48), 120_000),
    rate(ibv_rate::IBV_RATE_14_GBPS, None, 14_062),
    rate(ibv_rate::IBV_RATE_56_GBPS, None, 56_250),
    rate(ibv_rate::IBV_RATE_112_GBPS, None, 112_500),
    rate(ibv_rate::IBV_RATE_168_GBPS, None, 168_750),
    rate(ibv_rate::IBV_RATE_25_GBPS, None, 25_781),
    rate(ibv_rate::IBV_RATE_100_GBPS, None, 103_125),
    rate(ibv_rate::IBV_RATE_200_GBPS, None, 206_250),
    rate(ibv_rate::IBV_RATE_300_GBPS, None, 309_375),
    rate(ibv_rate::IBV_RATE_28_GBPS, Some(11), 28_125),
    rate(ibv_rate::IBV_RATE_50_GBPS, Some(20), 53_125),
    rate(ibv_rate::IBV_RATE_400_GBPS, Some(160), 425_000),
    rate(ibv_rate::IBV_RATE_600_GBPS, Some(240), 637_500),
    rate(ibv_rate::IBV_RATE_800_GBPS, Some(320), 850_000),
    rate(ibv_rate::IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

static STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

static EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

static NODE_TYPES: [&CStr; 8] = [
    c"",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

static PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use ibverbs_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status};
    use libc::{c_char, c_int};

    use super::super::real::Symbol;

    /// Checks that a conversion function of this crate returns the same results as the function of
    /// the real library. The arguments are numbers below, in and above the range of its table.
    macro_rules! compare {
        ($name:ident, $argument:ty => $answer:ty, $numbers:expr, $make:expr, $show:expr) => {{
            static SYMBOL: Symbol = Symbol::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );
            let ours: unsafe extern "C" fn($argument) -> $answer = super::$name;
            let real = SYMBOL
                .find(ours as *const ())
                .expect("libibverbs.so.1 is installed");
            type Function = unsafe extern "C" fn($argument) -> $answer;
            // SAFETY: the function with this name has this type.
            let real = unsafe { std::mem::transmute::<*const (), Function>(real) };
            for number in $numbers {
                // SAFETY: these functions accept any number.
                let (ours, real) = unsafe { (ours($make(number)), real($make(number))) };
                assert_eq!($show(ours), $show(real), "{}({number})", stringify!($name));
            }
        }};
    }

    fn string(text: *const c_char) -> String {
        assert!(!text.is_null());
        // SAFETY: the pointer is to a C string that is never freed.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn names_agree_with_the_real_library() {
        let numbers = (0..64).chain([u32::MAX]);
        compare!(ibv_wc_status_str, ibv_wc_status => *const c_char, numbers.clone(), ibv_wc_status, string);
        compare!(ibv_event_type_str, ibv_event_type => *const c_char, numbers.clone(), ibv_event_type, string);
        compare!(ibv_port_state_str, ibv_port_state => *const c_char, numbers.clone(), ibv_port_state, string);
        compare!(ibv_node_type_str, ibv_node_type => *const c_char, -2..64, ibv_node_type, string);
    }

    #[test]
    fn rates_agree_with_the_real_library() {
        let megabits = (0..2_000_000)
            .step_by(500)
            .chain([14_062, 25_781, 103_125, 53_125, 309_375, 28_125]);
        compare!(ibv_rate_to_mult, ibv_rate => c_int, 0..64, ibv_rate, |n| n);
        compare!(ibv_rate_to_mbps, ibv_rate => c_int, 0..64, ibv_rate, |n| n);
        compare!(mult_to_ibv_rate, c_int => ibv_rate, -1..1000, |n| n, |rate: ibv_rate| rate.0);
        compare!(mbps_to_ibv_rate, c_int => ibv_rate, megabits, |n| n, |rate: ibv_rate| rate.0);
    }
}
