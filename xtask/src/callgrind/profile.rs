//! Parses the profile that callgrind writes for one thread of a program.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// The name of the C library's function that calls `main`. The instructions of this function are
/// not counted as instructions of a library, because the whole program runs inside this function.
const CALLER: &str = "__libc_start_main";

/// The name of the function in which a measured program sleeps while the device works. The
/// instructions of this function are not counted.
const REST: &str = "rest";

/// The instructions of a thread, divided by the owner of the code: the program, the device or other
/// libraries. The instructions of a library are counted at the program's call, and include the
/// instructions of everything that the library calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// Instructions of the program itself.
    pub(super) own: u64,
    /// Instructions of the device's library.
    pub(super) device: u64,
    /// Instructions of other libraries.
    pub(super) libraries: u64,
    /// Number of times that the program calls each function of the device's library, by the last
    /// part of the function's name.
    pub(super) verbs: BTreeMap<String, u64>,
    /// Number of times that the program calls each function of other libraries.
    pub(super) calls: BTreeMap<String, u64>,
}

impl Profile {
    /// Parses `text`, a profile (counts of instructions) that callgrind has written without
    /// compression of names and positions. `program` and `device` are the paths of the program and
    /// of the device's library. The instructions of the program, of this library and of other
    /// libraries are counted separately.
    pub(super) fn parse(text: &str, program: &str, device: &str) -> anyhow::Result<Self> {
        let mut profile = Self::default();
        let mut object = "";
        let mut rests = false;
        // The called object file, the called function and the number of calls. Kept until the line
        // with the cost of these calls.
        let (mut callee_object, mut callee, mut calls) = (None, "", None::<u64>);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = name;
            } else if let Some(name) = line.strip_prefix("fn=") {
                rests = last_name(name) == REST;
            } else if let Some(name) = line.strip_prefix("cob=") {
                callee_object = Some(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name;
            } else if let Some(counts) = line.strip_prefix("calls=") {
                let count = counts
                    .split(' ')
                    .next()
                    .and_then(|count| count.parse().ok());
                calls = Some(count.with_context(|| format!("no number of calls: {line}"))?);
            } else if line.starts_with(|first: char| first.is_ascii_digit()) {
                let cost = line
                    .split(' ')
                    .nth(1)
                    .map_or(Some(0), |cost| cost.parse().ok());
                let cost: u64 = cost.with_context(|| format!("no cost: {line}"))?;
                let Some(count) = calls.take() else {
                    if object == program && !rests {
                        profile.own += cost;
                    }
                    continue;
                };
                let target = callee_object.take().unwrap_or(object);
                if object != program || rests || target == program || callee.starts_with(CALLER) {
                    continue;
                }
                if target == device {
                    profile.device += cost;
                    *profile.verbs.entry(last_name(callee)).or_default() += count;
                } else {
                    profile.libraries += cost;
                    *profile.calls.entry(callee.to_owned()).or_default() += count;
                }
            }
        }
        if profile.own == 0 {
            bail!("the profile has no instructions of {program}");
        }
        Ok(profile)
    }
}

/// Returns the last part of a function's path: `poll_cq` for `softroce::abi::completion::poll_cq`.
fn last_name(function: &str) -> String {
    function.rsplit("::").next().unwrap_or(function).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version: 1
positions: line
events: Ir

ob=/lib/libc.so.6
fl=???
fn=__libc_start_main@@GLIBC_2.34
0 90
cob=/bin/loop
cfi=???
cfn=main
calls=1 0
0 1000

ob=/bin/loop
fn=(below main)
0 0
cob=/lib/libc.so.6
cfi=???
cfn=__libc_start_main@@GLIBC_2.34
calls=1 0
0 1090

fl=loop.c
fn=main
0 40
0 2
cfn=complete
calls=3 0
0 300
cob=/lib/libdevice.so
cfi=???
cfn=device::abi::poll_cq
calls=2 0
0 500
cob=/lib/libc.so.6
cfi=???
cfn=malloc
calls=1 0
0 150
fn=complete
fe=other.c
0 8
fn=loop::rest
0 6
cob=/lib/libc.so.6
cfi=???
cfn=usleep
calls=5 0
0 700

ob=/lib/libdevice.so
fn=device::abi::poll_cq
0 400
cob=/lib/libc.so.6
cfn=malloc
calls=9 0
0 100
";

    #[test]
    fn costs_are_divided_by_the_owner_of_the_code() {
        let profile = Profile::parse(TEXT, "/bin/loop", "/lib/libdevice.so").unwrap();
        assert_eq!(
            (profile.own, profile.device, profile.libraries),
            (50, 500, 150)
        );
        assert_eq!(profile.verbs, [("poll_cq".to_owned(), 2)].into());
        assert_eq!(profile.calls, [("malloc".to_owned(), 1)].into());
    }

    #[test]
    fn a_profile_of_another_program_is_refused() {
        assert!(Profile::parse(TEXT, "/bin/other", "/lib/libdevice.so").is_err());
    }
}
