//! Attacks a connection between two devices of this host by forged packets, as any user can send
//! them. An argument is the address of a device, with the queue pair number and the expected
//! sequence number:
//! ```text
//! cargo run -p softroce --release --example attacker -- 127.1.2.3:4791/74565/0 127.1.2.4:4791/65433/0 --seconds 60
//! ```
//! Prints how many packets it has sent.

#[path = "../tests/attacker/attack.rs"]
mod attack;

use std::process::ExitCode;

use attack::{Attack, USAGE};

fn main() -> ExitCode {
    let attack = match Attack::of(std::env::args().skip(1)) {
        Ok(attack) => attack,
        Err(reason) => {
            eprintln!("{reason}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match attack.run() {
        Ok(sent) => {
            println!("{sent}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sending: {error}");
            ExitCode::FAILURE
        }
    }
}
