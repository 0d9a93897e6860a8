//! A program of uDAPL, which connects queue pairs by TCP (`dapl_scm`).

use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use crate::program::Running;

/// Port on which `dtestsrq` listens. Its services have the TCP port that is 1000 above their
/// number.
const PORT: u16 = 46248;

/// Time in which the server begins to listen.
const LISTEN: Duration = Duration::from_secs(60);

/// Runs `dtestsrq`, whose connections share a receive queue, twice in a row.
///
/// The programs `dtest` and `dtestx` tell the client to connect before their server listens, and
/// uDAPL's second attempt to connect has a header of another length than its server reads. So they
/// fail now and then on every device.
pub(crate) fn shared_receive_queue() -> Result<(), String> {
    let registry = std::env::temp_dir().join(format!("softroce-dat-{}", std::process::id()));
    let provider =
        "soft u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"softroce0 1\" \"\"\n";
    fs::write(&registry, provider).map_err(|error| format!("writing: {error}"))?;
    let path = registry.to_str().ok_or("a path in UTF-8")?;
    let result = (0..2).try_for_each(|_| server_and_client(&[("DAT_OVERRIDE", path)]));
    // Fails only if the file was removed already.
    let _ = fs::remove_file(&registry);
    result
}

fn server_and_client(variables: &[(&str, &str)]) -> Result<(), String> {
    let server = ["dtestsrq", "-P", "soft"];
    let mut running = Running::start(&server, variables)?;
    let deadline = Instant::now() + LISTEN;
    let address = loop {
        if let Some(address) = listening()? {
            break address.to_string();
        }
        if running.has_ended() || Instant::now() >= deadline {
            return Err(format!("the server does not listen: {}", running.wait()));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let client = Running::start(&[&server[..], &["-h", &address]].concat(), variables)?.wait();
    for ended in [client, running.wait()] {
        ended.judge(&["DAPL RC SRQ Test Complete."])?;
    }
    Ok(())
}

/// Returns the address on which a program listens on [`PORT`]. uDAPL chooses the interface.
fn listening() -> Result<Option<Ipv4Addr>, String> {
    let table = fs::read_to_string("/proc/net/tcp").map_err(|error| format!("sockets: {error}"))?;
    let found = table.lines().find_map(|line| {
        // The number of the line, the local address, the remote address, and the state, in which 0A
        // stands for LISTEN.
        let mut words = line.split_whitespace().skip(1);
        let (address, port) = words.next()?.split_once(':')?;
        let is_it = words.nth(1)? == "0A" && u16::from_str_radix(port, 16) == Ok(PORT);
        // The bytes of the address are in the order of the memory.
        let address = u32::from_str_radix(address, 16).ok()?;
        is_it.then(|| Ipv4Addr::from(address.to_ne_bytes()))
    });
    Ok(found)
}
