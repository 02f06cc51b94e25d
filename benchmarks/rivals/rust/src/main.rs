//! Sends requests of 500 records with the AWS SDK for Rust, 16 in flight. ../../rows.py describes its input and output.

use aws_config::BehaviorVersion;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::PutRecordsRequestEntry;
use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const REQUEST_RECORDS: usize = 500;
const REQUEST_BYTES: usize = 4_000_000;
const IN_FLIGHT: usize = 16;

type Failure = Box<dyn Error + Send + Sync>;

struct Row {
    key: String,
    data: Vec<u8>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let (endpoint_url, path, stream) = (&arguments[1], &arguments[2], &arguments[3]);
    let rows = read(path)?;
    let config = aws_config::defaults(BehaviorVersion::v2026_01_12()).endpoint_url(endpoint_url).load().await;
    let client = Client::new(&config);
    println!("ready");
    for told in std::io::stdin().lock().lines() {
        let records = told?.parse()?;
        put(&client, stream, &rows, records).await?;
        println!("{records}");
    }
    Ok(())
}

fn read(path: &str) -> Result<Vec<Row>, Failure> {
    let content = std::fs::read(path)?;
    let mut rest = &content[..];
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let key_end = 8 + u32::from_le_bytes(rest[..4].try_into()?) as usize;
        let data_end = key_end + u32::from_le_bytes(rest[4..8].try_into()?) as usize;
        rows.push(Row { key: String::from_utf8(rest[8..key_end].to_vec())?, data: rest[key_end..data_end].to_vec() });
        rest = &rest[data_end..];
    }
    Ok(rows)
}

async fn put(client: &Client, stream: &str, rows: &[Row], records: usize) -> Result<(), Failure> {
    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut sends = JoinSet::new();
    let mut request = Vec::with_capacity(REQUEST_RECORDS);
    let mut size = 0;
    for (i, row) in rows.iter().cycle().take(records).enumerate() {
        request.push(
            PutRecordsRequestEntry::builder().data(Blob::new(row.data.as_slice())).partition_key(&row.key).build()?,
        );
        size += row.key.len() + row.data.len();
        let next = &rows[(i + 1) % rows.len()];
        let is_full = request.len() == REQUEST_RECORDS || size + next.key.len() + next.data.len() > REQUEST_BYTES;
        if is_full || i + 1 == records {
            let taken = room.clone().acquire_owned().await?;
            let whole = std::mem::replace(&mut request, Vec::with_capacity(REQUEST_RECORDS));
            let call = client.put_records().stream_name(stream).set_records(Some(whole));
            sends.spawn(async move {
                let answer = call.send().await?;
                drop(taken);
                match answer.failed_record_count() {
                    None | Some(0) => Ok(()),
                    Some(failed) => Err(Failure::from(format!("{failed} records failed"))),
                }
            });
            size = 0;
        }
        while let Some(done) = sends.try_join_next() {
            done??;
        }
    }
    while let Some(done) = sends.join_next().await {
        done??;
    }
    Ok(())
}
