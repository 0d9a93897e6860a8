//! Checks the span of a connection, and the events of operations.
//!
//! This file contains only one test: if a thread without a subscriber reached a callsite first, the
//! callsite would be disabled for all threads.

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use common::{builder, context, pattern};
use rdma_async::{LocalMrReadAccess, RdmaDevice, RemoteMr};
use rdma_core::RemoteMemory;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Writer of log lines to memory.
#[derive(Debug, Default, Clone)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn operations_are_events_in_the_span_of_their_connection() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(lines.clone())
        .finish();
    let _subscribed = tracing::subscriber::set_default(subscriber);
    // The subscriber belongs to this thread, so the runtime has no other threads.
    common::run_on(common::one_thread(), async {
        let device = RdmaDevice::new(&context()).unwrap();
        let mut listener = builder().on(&device).bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let connecting = builder().on(&device).connect(address);
        let (client, server) = tokio::join!(connecting, listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let message = pattern(&client, 100, 1);
        let (sent, received) = tokio::join!(client.send(&message), server.receive());
        sent.unwrap();
        assert_eq!(received.unwrap().length(), 100);
        let forged = RemoteMemory {
            address: 0x1000,
            len: 100,
            rkey: 77,
        };
        let refused = client
            .write(&message, &mut RemoteMr::from_token(forged))
            .await;
        refused.unwrap_err();
        let queue_pair = format!("queue_pair={}", client.queue_pair().number());
        let peer = format!("peer={}", client.peer_address());
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let has_line = |parts: &[&str]| {
            let mut lines = text.lines();
            lines.any(|line| parts.iter().all(|part| line.contains(part)))
        };
        let own = ["rdma_connection", &*queue_pair, &*peer];
        let with = |parts: &[&'static str]| [&own[..], parts].concat();
        assert!(
            has_line(&with(&[
                "TRACE",
                "completed",
                "operation=\"send\"",
                "bytes=100"
            ])),
            "{text}"
        );
        assert!(
            has_line(&with(&[
                "TRACE",
                "failed",
                "operation=\"write\"",
                "remote access"
            ])),
            "{text}"
        );
        assert!(has_line(&with(&["DEBUG", "connection ended"])), "{text}");
        assert!(client.span().metadata().is_some());
    });
}
