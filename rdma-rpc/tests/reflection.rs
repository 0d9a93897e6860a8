//! Tests of the reflection service: the names, types and schemas of a server's methods.

mod common;

use common::{Computing, EverythingServer, connect, listen, over_every_transport, within};
use rdma_rpc::{
    Address, Bulk, Fields, Format, ReflectionClient, Server, TypeDescription, TypeFormat,
};
use serde::{Deserialize, Serialize};

over_every_transport! {
    methods_are_described;
}

#[derive(Debug, Serialize, Deserialize)]
enum Shape {
    Circle { radius: f64 },
    Square(u32),
    Nothing,
}

#[derive(Debug, Serialize, Deserialize)]
struct Drawing {
    shapes: Vec<Shape>,
    picture: Option<Bulk>,
}

#[rdma_rpc::service]
trait Board {
    async fn draw(&self, drawing: Drawing, scale: (u8, Option<i64>)) -> Result<(), String>;
}

struct Blank;

impl Board for Blank {
    async fn draw(&self, _: Drawing, _: (u8, Option<i64>)) -> Result<(), String> {
        Ok(())
    }
}

fn format(described: &TypeDescription) -> &Format {
    &described.schema.as_ref().expect("it is known").format
}

async fn methods_are_described(address: Address) {
    let server = Server::new(EverythingServer::new(Computing::default()))
        .service(BoardServer::new(Blank))
        .reflection();
    let server = listen(server, address).await;
    let client = ReflectionClient::new(connect(&server).await);
    let methods = within("the methods", client.methods()).await.unwrap();
    let names: Vec<_> = methods.iter().map(|method| method.name.as_str()).collect();
    let expected = [
        "Board.draw",
        "Everything.add",
        "Everything.count",
        "Everything.double",
        "Everything.echo",
        "Everything.find",
        "Everything.note",
        "Everything.nothing",
        "Everything.reverse",
        "Everything.sum",
        "Everything.text",
    ];
    assert_eq!(names, expected);
    let method = |name: &str| methods.iter().find(|method| method.name == name).unwrap();

    let draw = method("Board.draw");
    assert_eq!((draw.codec, draw.is_one_way), (1, false));
    let texts: Vec<_> = draw
        .arguments
        .iter()
        .map(|argument| (argument.name.as_str(), argument.text.as_str()))
        .collect();
    assert_eq!(
        texts,
        [("drawing", "Drawing"), ("scale", "(u8, Option<i64>)")]
    );
    assert_eq!(
        format(&draw.arguments[0]),
        &Format::Named("Drawing".to_owned())
    );
    let types = &draw.arguments[0].schema.as_ref().unwrap().types;
    let TypeFormat::Struct(Fields::Named(fields)) = &types["Drawing"] else {
        panic!("{types:?}");
    };
    let shape = Format::Named("Shape".to_owned());
    assert_eq!(
        fields[0],
        ("shapes".to_owned(), Format::Seq(Box::new(shape)))
    );
    assert_eq!(fields[1].0, "picture");
    let TypeFormat::Enum(variants) = &types["Shape"] else {
        panic!("{types:?}");
    };
    let expected = [
        (
            "Circle",
            Fields::Named(vec![("radius".to_owned(), Format::F64)]),
        ),
        ("Square", Fields::Newtype(Format::U32)),
        ("Nothing", Fields::Unit),
    ];
    let expected = expected.map(|(name, fields)| (name.to_owned(), Some(fields)));
    assert_eq!(variants, &expected);
    assert!(types.contains_key("Bulk"), "{types:?}");
    let optional = Format::Option(Box::new(Format::I64));
    assert_eq!(
        format(&draw.arguments[1]),
        &Format::Tuple(vec![Format::U8, optional])
    );
    let result = draw.result.as_ref().unwrap();
    assert_eq!(
        (result.text.as_str(), format(result)),
        ("()", &Format::Unit)
    );
    assert_eq!(draw.error.as_ref().unwrap().text, "String");

    let double = method("Everything.double");
    let input = double.input.as_ref().unwrap();
    assert_eq!(
        (input.name.as_str(), input.text.as_str()),
        ("numbers", "u64")
    );
    assert_eq!(double.output.as_ref().unwrap().name, "doubled");
    let reverse = method("Everything.reverse");
    assert_eq!((reverse.codec, reverse.arguments.len()), (0, 0));
    let note = method("Everything.note");
    assert!(note.is_one_way && note.result.is_none() && note.error.is_none());

    let board = BoardClient::new(client.client().clone());
    let drawing = || Drawing {
        shapes: Vec::new(),
        picture: None,
    };
    for _ in 0..3 {
        let drawn = within("a call", board.draw(drawing(), (1, None))).await;
        drawn.unwrap();
    }
    let calls = within("the counts", client.calls()).await.unwrap();
    assert_eq!(calls.len(), 11);
    let draw = &calls[0];
    assert_eq!(
        (draw.name.as_str(), draw.started, draw.ended, draw.failed),
        ("Board.draw", 3, 3, 0)
    );
}
