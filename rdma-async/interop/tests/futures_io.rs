//! Checks the traits of the crate `futures` by its functions `copy` and `split` and its buffers.

use futures_util::StreamExt;
use futures_util::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy,
};
use rdma_async_interop::data::{self, Check};
use rdma_async_interop::{Rdma, Tcp, in_time, pair, run};
use tokio_util::compat::TokioAsyncReadCompatExt;

/// Defines each test over RDMA, whose streams implement the traits, and over TCP with an adapter.
macro_rules! over_each {
    ($($test:ident),+ $(,)?) => {
        mod rdma {
            $(
                #[test]
                fn $test() {
                    super::run(async {
                        let (client, server) = super::pair::<super::Rdma>().await;
                        super::$test(client, server).await;
                    });
                }
            )+
        }

        mod tcp {
            use super::TokioAsyncReadCompatExt;

            $(
                #[test]
                fn $test() {
                    super::run(async {
                        let (client, server) = super::pair::<super::Tcp>().await;
                        super::$test(client.compat(), server.compat()).await;
                    });
                }
            )+
        }
    };
}

over_each!(
    copied_bytes_are_echoed,
    a_buffered_reader_reads_lines,
    closing_ends_one_direction,
);

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

async fn copied_bytes_are_echoed(client: impl Stream, server: impl Stream) {
    const LEN: usize = 16 << 20;
    let echo = tokio::spawn(async move {
        let (reader, mut writer) = server.split();
        let copied = copy(reader, &mut writer).await.unwrap();
        writer.close().await.unwrap();
        copied
    });
    let (mut reader, mut writer) = client.split();
    let writing = tokio::spawn(async move {
        for chunk in data::chunks(LEN, 33_333) {
            writer.write_all(&chunk).await.unwrap();
        }
        writer.close().await.unwrap();
    });
    let mut check = Check::default();
    let mut part = vec![0; 100_000];
    loop {
        match in_time("the echo", reader.read(&mut part)).await.unwrap() {
            0 => break,
            len => check.take(&part[..len]),
        }
    }
    assert_eq!(check.len(), LEN);
    in_time("the writer", writing).await.unwrap();
    assert_eq!(in_time("the server", echo).await.unwrap(), LEN as u64);
}

async fn a_buffered_reader_reads_lines(mut client: impl Stream, server: impl Stream) {
    let writing = tokio::spawn(async move {
        for number in 0..10_000 {
            let line = format!("line {number}\n");
            client.write_all(line.as_bytes()).await.unwrap();
        }
        client.close().await.unwrap();
    });
    let mut lines = BufReader::new(server).lines();
    for number in 0..10_000 {
        let line = in_time("a line", lines.next()).await.unwrap().unwrap();
        assert_eq!(line, format!("line {number}"));
    }
    assert!(in_time("the end", lines.next()).await.is_none());
    in_time("the writer", writing).await.unwrap();
}

async fn closing_ends_one_direction(mut client: impl Stream, mut server: impl Stream) {
    client.write_all(b"question").await.unwrap();
    client.close().await.unwrap();
    let mut question = String::new();
    let reading = server.read_to_string(&mut question);
    in_time("the question", reading).await.unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").await.unwrap();
    server.flush().await.unwrap();
    drop(server);
    let mut answer = String::new();
    let reading = client.read_to_string(&mut answer);
    in_time("the answer", reading).await.unwrap();
    assert_eq!(answer, "answer");
}
