#![allow(unused_imports)]

use rdma_rpc::{Context, Receiver, Sender};

#[rdma_rpc::service]
trait Wrong {
    fn not_async(&self) -> Result<(), ()>;
    async fn without_self() -> Result<(), ()>;
    async fn other_first(number: u32) -> Result<(), ()>;
    async fn exclusive(&mut self) -> Result<(), ()>;
    async fn by_value(self) -> Result<(), ()>;
    async fn generic<T>(&self, value: T) -> Result<T, ()>;
    async fn with_body(&self) -> Result<(), ()> {
        Ok(())
    }
    async fn borrowed(&self, text: &str) -> Result<(), ()>;
    async fn pattern(&self, (left, right): (u32, u32)) -> Result<u32, ()>;
    async fn late_context(&self, number: u32, cx: &Context) -> Result<(), ()>;
    async fn exclusive_context(&self, cx: &mut Context) -> Result<(), ()>;
    async fn two_contexts(&self, cx: &Context, other: &Context) -> Result<(), ()>;
    async fn bounded(&self) -> Result<(), ()>
    where
        Self: Clone;
    async fn two_inputs(&self, a: Receiver<u32>, b: Receiver<u32>) -> Result<(), ()>;
    async fn two_outputs(&self, a: Sender<u32>, b: Sender<u32>) -> Result<(), ()>;
    async fn no_result(&self) -> u32;
    async fn nothing(&self);
    async fn connect(&self) -> Result<(), ()>;
    const NUMBER: u32;
}

fn main() {}
