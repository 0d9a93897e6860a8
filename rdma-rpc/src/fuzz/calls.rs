//! The service of the fuzz targets, and the calls that a client makes. A number in the input of the
//! fuzzer selects the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::bulk::Bulk;
use crate::client::Client;
use crate::codec::{Postcard, RawCodec, ServiceCodec};
use crate::error::{CallError, Error};
use crate::metadata::Metadata;
use crate::method::MethodInfo;
use crate::payload::Payload;
use crate::server::{Call, Methods, Service};

/// Returns the description of a method with this number and name that has one request, one response
/// and no streams.
const fn unary(id: u32, name: &'static str) -> MethodInfo {
    MethodInfo {
        id,
        name,
        has_input: false,
        has_output: false,
        is_one_way: false,
        is_once: false,
    }
}

static ECHO: MethodInfo = unary(1, "Fuzz.echo");
static RAW: MethodInfo = unary(2, "Fuzz.raw");
static WAIT: MethodInfo = unary(3, "Fuzz.wait");
static LONG: MethodInfo = unary(4, "Fuzz.long");
static SUM: MethodInfo = MethodInfo {
    has_input: true,
    ..unary(5, "Fuzz.sum")
};
static COUNT: MethodInfo = MethodInfo {
    has_output: true,
    ..unary(6, "Fuzz.count")
};
static DOUBLE: MethodInfo = MethodInfo {
    has_input: true,
    has_output: true,
    ..unary(7, "Fuzz.double")
};
static NOTE: MethodInfo = MethodInfo {
    is_one_way: true,
    ..unary(8, "Fuzz.note")
};

static BULK: MethodInfo = unary(9, "Fuzz.bulk");

/// Service of the fuzz targets, with methods of every kind. Counts its running handlers. After the
/// fuzzed peer has disconnected, the count must be 0.
#[derive(Clone, Default)]
pub(super) struct HandlerCount(Arc<AtomicUsize>);

/// Guard that counts a handler as running until the guard is dropped.
struct CountedHandler(HandlerCount);

impl HandlerCount {
    /// Returns the number of handlers of the test service that are running now.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a handler as running until the returned value is dropped.
    fn begin(&self) -> CountedHandler {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountedHandler(self.clone())
    }
}

impl Drop for CountedHandler {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Result type of every method of the test service. The service's error is a text.
type Outcome<T> = Result<T, String>;

impl Service for HandlerCount {
    fn register(self, methods: &mut Methods) {
        type Codecs = ServiceCodec<Postcard>;
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&ECHO, move |call: Call<String>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                match call.context.metadata().get_str("fail") {
                    Some(reason) => Err(reason.to_owned()),
                    None => Ok(call.request),
                }
            }
        });
        methods.add::<RawCodec<Postcard>, _, _, _, _, _>(
            &RAW,
            move |call: Call<Payload>| async move { Outcome::Ok(call.request) },
        );
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&WAIT, move |call: Call<u8>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                tokio::select! {
                    () = call.context.cancelled() => {}
                    () = tokio::time::sleep(Duration::from_secs(call.request.into())) => {}
                }
                Outcome::Ok(call.request)
            }
        });
        methods.add::<Codecs, _, _, _, _, _>(&LONG, move |call: Call<u16>| async move {
            Outcome::Ok("x".repeat(call.request.into()))
        });
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&SUM, move |call: Call<()>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                let mut numbers = call.receiver::<Postcard, u32>();
                let mut sum = 0_u32;
                while let Some(number) = numbers.next().await {
                    sum = sum.wrapping_add(number.map_err(|error| error.to_string())?);
                }
                Outcome::Ok(sum)
            }
        });
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&COUNT, move |call: Call<u16>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                let mut texts = call.sender::<Postcard, String>();
                for number in 0..call.request {
                    // Every eighth item is longer than a batch.
                    let len = if number % 8 == 7 { 5000 } else { 3 };
                    let sent = texts.send("n".repeat(len)).await;
                    sent.map_err(|error| error.to_string())?;
                }
                Outcome::Ok(call.request)
            }
        });
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&DOUBLE, move |call: Call<(u8, String)>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                let mut numbers = call.receiver::<Postcard, u32>();
                let mut doubled = call.sender::<Postcard, u32>();
                while let Some(Ok(number)) = numbers.next().await {
                    let sent = doubled.send(number.wrapping_mul(2)).await;
                    sent.map_err(|error| error.to_string())?;
                }
                Outcome::Ok(call.request)
            }
        });
        let handlers = self.clone();
        methods.add::<Codecs, _, _, _, _, _>(&BULK, move |call: Call<Bulk>| {
            let counted = handlers.begin();
            async move {
                let _counted = counted;
                let read = call.request.read(..).await;
                let memory = read.map_err(|error| error.to_string())?;
                let (_, memory) = call.request.write(0, memory).await;
                Outcome::Ok(Bulk::writable(memory))
            }
        });
        methods.add::<Codecs, _, _, _, _, _>(&NOTE, move |call: Call<u8>| {
            let counted = self.begin();
            async move {
                let _counted = counted;
                tokio::time::sleep(Duration::from_secs(call.request.into())).await;
                Ok::<(), ()>(())
            }
        });
    }
}

/// Number of methods of the fuzz targets' service from which [`call`] selects for values of `kind`
/// below [`BULK_CALL`]. Does not include the method with a [`Bulk`] as its argument.
pub(super) const CALL_KINDS: u8 = 8;

/// Lowest value of the parameter `kind` of [`call`] that selects the method with a [`Bulk`] as its
/// argument. `kind` is a byte of the fuzzer's input. Lower values select the other methods.
pub(super) const BULK_CALL: u8 = 200;

/// Maximum length in bytes of a [`Bulk`] that the fuzzed peer may send. Short, so that an input
/// does not allocate much memory.
pub(super) const BULK_LIMIT: usize = 1 << 16;

/// Makes the call that `kind` selects. A value of at least [`BULK_CALL`] selects the method with a
/// [`Bulk`] as its argument. A lower value is divided by [`CALL_KINDS`]: the remainder selects the
/// method, and the quotient selects metadata or a deadline. Ignores an error that the service
/// returns.
pub(super) async fn call(client: Client, kind: u8) -> Result<(), Error> {
    type Codecs = ServiceCodec<Postcard>;
    let client = match kind / CALL_KINDS {
        1 => client.with_metadata(Metadata::default().with("fail", "no")),
        2 => client.with_deadline(Duration::from_secs(1)),
        3 => client.with_deadline(Duration::MAX),
        _ => client,
    };
    let text = |len| "t".repeat(len);
    if kind >= BULK_CALL {
        let own = Bulk::writable(vec![7; 5000].into());
        let called = client.unary::<Codecs, _, _, _>(&BULK, own.clone()).await;
        let theirs: Bulk = match called {
            Err(CallError::Service::<String>(_)) => return Ok(()),
            called => called.map_err(|error| error.rpc().unwrap_or(Error::Cancelled))?,
        };
        drop(own.into_memory());
        let read = theirs.read(..).await?;
        return theirs.write(0, read).await.0;
    }
    match kind % CALL_KINDS {
        0 => outcome::<String>(client.unary::<Codecs, _, _, _>(&ECHO, text(9)).await),
        1 => {
            let bytes = text(1500);
            let called = client.unary::<RawCodec<Postcard>, _, _, _>(&RAW, bytes);
            outcome::<Payload>(called.await)
        }
        2 => outcome::<u8>(client.unary::<Codecs, _, _, _>(&WAIT, 1_u8).await),
        3 => outcome::<String>(client.unary::<Codecs, _, _, _>(&LONG, 5000_u16).await),
        4 => {
            let (mut numbers, sum) = client
                .upload::<Codecs, _, u32, u32, String>(&SUM, ())
                .await?;
            for number in 0..3 {
                // The answer contains the reason for the end.
                drop(numbers.send(number).await);
            }
            drop(numbers);
            outcome(sum.await)
        }
        5 => {
            let mut texts = client
                .download::<Codecs, _, String, u16, String>(&COUNT, 9_u16)
                .await?;
            while let Some(text) = texts.next().await {
                outcome(text)?;
            }
            outcome(texts.finish().await)
        }
        6 => {
            let (mut numbers, mut doubled) = client
                .exchange::<Codecs, _, u32, u32, (u8, String), String>(&DOUBLE, (1_u8, text(2)))
                .await?;
            for number in 0..3 {
                drop(numbers.send(number).await);
                if let Some(number) = doubled.next().await {
                    outcome(number)?;
                }
            }
            drop(numbers);
            outcome(doubled.finish().await)
        }
        _ => client.one_way::<Codecs, _>(&NOTE, 1_u8).await,
    }
}

/// Drops the value in the result of a call. Also returns `Ok` for an error that the service has
/// returned, because the fuzz targets check only the errors of rdma-rpc itself.
fn outcome<T>(outcome: Result<T, CallError<String>>) -> Result<(), Error> {
    match outcome {
        Ok(_) | Err(CallError::Service(_)) => Ok(()),
        Err(CallError::Rpc(error)) => Err(error),
    }
}
