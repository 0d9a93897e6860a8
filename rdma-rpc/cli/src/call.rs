//! The subcommand `call`, which calls a method with arguments in JSON.

use anyhow::{Context, bail};
use rdma_rpc::{Client, MethodDescription, Request, TypeDescription};
use serde_json::Value;

use crate::list::methods;
use crate::transcode::{decode, encode};

/// Number of the codec for unencoded bytes, in the description of a method.
const BYTES: u8 = 0;
/// Number of the codec Postcard, in the description of a method.
const POSTCARD: u8 = 1;
/// Number of the codec JSON, in the description of a method.
const JSON: u8 = 2;

/// Calls the method `name` with `arguments` in JSON, and prints the result as JSON. Fails if the
/// method has streams or no response.
pub(crate) async fn run(client: Client, name: &str, arguments: &str) -> anyhow::Result<()> {
    let methods = methods(&client).await?;
    let method = methods.iter().find(|method| method.name == name);
    let method = method.with_context(|| format!("the server has no method {name}"))?;
    if method.input.is_some() || method.output.is_some() || method.is_one_way {
        bail!("{name} is not a unary method");
    }
    let arguments: Value =
        serde_json::from_str(arguments).context("the arguments are not valid JSON")?;
    let body = body(method, &arguments)?;
    let mut request = Request::encoded(name, method.codec, &body).with_number(method.number);
    if method.is_once {
        request = request.once();
    }
    let reply = client.request(&request).await;
    let reply = reply.map_err(|error| anyhow::anyhow!("{error}"))?;
    let (is_error, codec) = (reply.is_error(), reply.codec());
    let described = match is_error {
        true => method.error.as_ref(),
        false => method.result.as_ref(),
    };
    let value = value(codec, &reply.into_body(), described)?;
    match is_error {
        true => bail!("the service's error: {value}"),
        false => println!("{value}"),
    }
    Ok(())
}

/// Encodes the arguments of a method, given as JSON, with the codec of the method. Returns the body
/// of the request.
fn body(method: &MethodDescription, arguments: &Value) -> anyhow::Result<Vec<u8>> {
    match method.codec {
        BYTES => match arguments {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            _ => bail!("the argument is a byte string: pass a JSON string"),
        },
        JSON => Ok(serde_json::to_vec(arguments)?),
        POSTCARD => {
            let mut body = Vec::new();
            let values: Vec<&Value> = match (&method.arguments[..], arguments) {
                ([_], one) => vec![one],
                ([], Value::Null) => Vec::new(),
                (several, Value::Array(values)) if values.len() == several.len() => {
                    values.iter().collect()
                }
                (several, _) => bail!("the method has {} arguments: pass an array", several.len()),
            };
            for (argument, value) in method.arguments.iter().zip(values) {
                let schema = argument.schema.as_ref();
                let schema = schema
                    .with_context(|| format!("the structure of {} is unknown", argument.name))?;
                encode(value, &schema.format, &schema.types, &mut body)
                    .with_context(|| format!("encoding {}", argument.name))?;
            }
            Ok(body)
        }
        codec => bail!("the codec {codec} is not supported"),
    }
}

/// Converts the body of a reply to JSON. `codec` is the number of its codec, and `described` the
/// description of the result or error type.
fn value(codec: u8, body: &[u8], described: Option<&TypeDescription>) -> anyhow::Result<Value> {
    match codec {
        BYTES => Ok(Value::String(String::from_utf8_lossy(body).into_owned())),
        JSON => Ok(serde_json::from_slice(body)?),
        _ => {
            let schema = described.and_then(|described| described.schema.as_ref());
            let schema = schema.context("the structure of the result is unknown")?;
            decode(body, &schema.format, &schema.types).context("decoding the result")
        }
    }
}
