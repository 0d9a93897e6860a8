//! Tests that a service may use any names, independent of the variables in generated code.

mod common;

use common::{connect, listen, memory, within};
use rdma_rpc::{Context, Receiver, Sender, Server};

#[rdma_rpc::service]
trait Names {
    async fn r#type(
        &self,
        cx: &Context,
        service: String,
        call: u32,
        methods: u8,
        client: bool,
        r#fn: char,
    ) -> Result<(String, u32, u8, bool, char), u8>;
    async fn streams(&self, service: Receiver<u32>, call: Sender<u32>) -> Result<u32, u8>;
    #[rpc(oneway)]
    async fn one(&self, call: String);
    /// Is removed by its `cfg` attribute, so its unknown type is not an error.
    #[cfg(any())]
    async fn never(&self, value: Missing) -> Result<Missing, u8>;
}

struct Same;

impl Names for Same {
    async fn r#type(
        &self,
        _: &Context,
        service: String,
        call: u32,
        methods: u8,
        client: bool,
        r#fn: char,
    ) -> Result<(String, u32, u8, bool, char), u8> {
        Ok((service, call, methods, client, r#fn))
    }

    async fn streams(&self, mut service: Receiver<u32>, mut call: Sender<u32>) -> Result<u32, u8> {
        let mut count = 0;
        while let Some(Ok(number)) = service.next().await {
            count += 1;
            call.send(number).await.map_err(|_| 1)?;
        }
        Ok(count)
    }

    async fn one(&self, _: String) {}
}

#[tokio::test]
async fn arguments_and_methods_may_have_any_name() {
    let server = Server::new(NamesServer::new(Same)).method_limit("Names.type", 1);
    let server = listen(server, memory()).await;
    let client = NamesClient::new(connect(&server).await);
    let same = client.r#type("text".to_owned(), 7, 8, true, 'x');
    let same = within("the answer", same).await.unwrap();
    assert_eq!(same, ("text".to_owned(), 7, 8, true, 'x'));
    let (mut sender, mut receiver) = client.streams().await.unwrap();
    sender.send(5).await.unwrap();
    drop(sender);
    let next = within("an item", receiver.next()).await;
    assert_eq!(next.unwrap().unwrap(), 5);
    assert_eq!(within("the end", receiver.finish()).await.unwrap(), 1);
    client.one("text".to_owned()).await.unwrap();
}
