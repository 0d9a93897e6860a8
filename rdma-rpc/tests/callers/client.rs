//! A process with many callers.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_rpc::{Bulk, CallError, Client};
use tokio::time::{sleep, sleep_until, timeout};

use crate::common::chance::Chance;
use crate::common::transport;
use crate::outcome::{self, Outcomes};
use crate::process::{self, Usage};
use crate::server::WorkClient;
use crate::stalls::{self, Stalls};

/// Interval of the clients' health checks.
pub(crate) const HEALTH_CHECK: Duration = Duration::from_millis(400);

/// Deadline of each call.
const DEADLINE: Duration = Duration::from_secs(2);

/// Time after the deadline by which each call must have ended.
const GRACE: Duration = Duration::from_millis(300);

/// Length of a bulk in bytes.
const BULK: usize = 4096;

/// Time within which a call must end at all.
const LIMIT: Duration = Duration::from_secs(60);

/// State that the callers of the process share.
struct Shared {
    /// Number of this process, which makes the numbers of its calls unique.
    number: u64,
    stalls: &'static Stalls,
    end: Instant,
    outcomes: Mutex<Outcomes>,
    /// Numbers of the calls of the method `record` that were answered.
    answered: Mutex<Vec<u64>>,
}

/// Makes calls for a time. The arguments are the number of the process, those of clients and of
/// callers, the time in seconds, a seed, the file for the numbers of answered calls, and the
/// addresses of the servers.
pub(crate) fn run() {
    let words = process::words();
    let numbers = words
        .iter()
        .take(5)
        .map(|word| word.parse().expect("a number"));
    let [number, clients, callers, seconds, seed] = numbers.collect::<Vec<u64>>()[..] else {
        panic!("five numbers: {words:?}");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let clients = connect(&words[6..], clients).await;
        process::say_ready();
        let stalls = Stalls::watch();
        let begin = stalls.begin();
        let shared = Arc::new(Shared {
            number,
            stalls,
            end: Instant::now() + Duration::from_secs(seconds),
            outcomes: Mutex::default(),
            answered: Mutex::default(),
        });
        let callers: Vec<_> = (0..callers)
            .map(|caller| {
                let client = clients[caller as usize % clients.len()].clone();
                let chance = Chance::new(seed.wrapping_mul(1 << 20).wrapping_add(caller));
                tokio::spawn(make_calls(caller, client, Arc::clone(&shared), chance))
            })
            .collect();
        sleep_until((shared.end - Duration::from_secs(seconds) / 2).into()).await;
        let half = Usage::of("self");
        for caller in callers {
            caller.await.expect("a caller does not panic");
        }
        let used = Usage::of("self");
        let outcomes = shared.outcomes.lock();
        let stalled = stalls::total_since(&begin);
        println!("{outcomes}; a client used {half} and then {used}, and was stalled {stalled:?}");
        outcomes.assert_no_violation();
        // On a machine with much other work, servers seem dead.
        let is_stalled = stalled > Duration::from_secs(seconds);
        assert!(outcomes.answered > 0, "{outcomes}");
        assert!(
            is_stalled || outcomes.answered > outcomes.failed,
            "{outcomes}"
        );
        assert!(used.is_about(&half), "{half} and then {used}");
        let answered = shared.answered.lock();
        let bytes: Vec<u8> = answered
            .iter()
            .flat_map(|call| call.to_le_bytes())
            .collect();
        let file = File::create_new(&words[5]);
        file.expect("a new file").write_all(&bytes).unwrap();
    });
}

/// Creates clients, each with a connection to each server.
async fn connect(addresses: &[String], count: u64) -> Vec<WorkClient> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let builder = Client::builder()
            .transport(transport())
            .deadline(DEADLINE)
            .backoff(Duration::from_millis(20), Duration::from_millis(200))
            .health_check(HEALTH_CHECK);
        let client = builder.connect_any(addresses).await;
        clients.push(WorkClient::new(client.expect("a server runs")));
    }
    clients
}

/// Makes one call after the other until the end of the run.
async fn make_calls(caller: u64, client: WorkClient, shared: Arc<Shared>, mut chance: Chance) {
    // The callers begin at different times.
    sleep(Duration::from_millis(chance.within(0, 2000))).await;
    let mut count = 0;
    while Instant::now() < shared.end {
        let call = shared.number << 48 | caller << 32 | count;
        count += 1;
        let begin = shared.stalls.begin();
        let begun = Instant::now();
        let ended = timeout(LIMIT, make_call(call, &client, &mut chance)).await;
        let took = begun.elapsed();
        let late = took.saturating_sub(DEADLINE + GRACE);
        let stalled = match late.is_zero() {
            true => Duration::ZERO,
            false => stalls::total_since(&begin),
        };
        let ended = ended.unwrap_or_else(|_| Err("the call never ended".to_owned()));
        let mut pause = Duration::from_millis(500) + 10 * took;
        {
            let mut outcomes = shared.outcomes.lock();
            if late > stalled {
                outcomes.violated(format!(
                    "{call:#x} took {took:?}, with threads stalled for {stalled:?}: {ended:?}"
                ));
            } else if !late.is_zero() {
                outcomes.count_stalled(late);
            }
            match ended {
                Ok(End::Answered) => {
                    outcomes.count("answers", took);
                    outcomes.answered += 1;
                }
                Ok(End::Recorded) => {
                    outcomes.count("answers", took);
                    outcomes.answered += 1;
                    shared.answered.lock().push(call);
                }
                Ok(End::Failed(kind)) => {
                    outcomes.count(kind, took);
                    outcomes.failed += 1;
                }
                Ok(End::Unanswered) => {
                    outcomes.count("without an answer", took);
                    pause = Duration::from_millis(500);
                }
                Err(what) => outcomes.violated(format!("{call:#x}: {what}")),
            }
        }
        // A slow machine gets fewer calls, because this is no test of its speed.
        let pause = pause.min(Duration::from_secs(3)).as_millis() as u64;
        sleep(Duration::from_millis(
            chance.within(pause / 2, pause * 3 / 2),
        ))
        .await;
    }
}

/// End of a call that does what it may.
#[derive(Debug)]
enum End {
    Answered,
    /// The answer of the method `record`.
    Recorded,
    /// A kind of error.
    Failed(&'static str),
    /// An error of the method that never returns.
    Unanswered,
}

/// Makes a call of a method that is chosen by chance. Fails with a description if it ends as it
/// must not.
async fn make_call(call: u64, client: &WorkClient, chance: &mut Chance) -> Result<End, String> {
    let ended = |outcome: Result<u64, CallError<String>>, expected, end| match outcome {
        Ok(answer) if answer == expected => Ok(end),
        Ok(answer) => Err(format!("the answer is {answer:#x}, not {expected:#x}")),
        Err(error) => outcome::kind(&error).map(End::Failed),
    };
    match chance.within(0, 16) {
        0 => match client.wait().await {
            Ok(()) => Err("the method has returned".to_owned()),
            Err(error) => outcome::kind(&error).map(|_| End::Unanswered),
        },
        1..=5 => {
            // Some handlers run while connections end.
            let millis = chance.within(0, 400).saturating_sub(200);
            ended(client.record(call, millis).await, call, End::Recorded)
        }
        6 => {
            let mut memory = match client.client().bulk_memory(BULK) {
                Ok(memory) => memory,
                // All connections have ended.
                Err(error) => return outcome::kind(&error.into()).map(End::Failed),
            };
            memory.fill(call as u8);
            let bulk = Bulk::from(memory);
            let outcome = client.sum(bulk.clone()).await;
            bulk.into_memory()
                .map_err(|_| "the memory is not back".to_owned())?;
            let expected = u64::from(call as u8) * BULK as u64;
            ended(outcome, expected, End::Answered)
        }
        _ => ended(client.next(call).await, call + 1, End::Answered),
    }
}
