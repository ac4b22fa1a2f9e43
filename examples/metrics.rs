//! Statistics of a pool for Prometheus, over HTTP. The server is a part of this program and not of gpu-vmm: a program that has a server
//! adds a route of its own, whose body is the text of `prometheus`.
//!
//! ```text
//! cargo run --release --example metrics -- 9464
//! curl http://127.0.0.1:9464/metrics
//! ```

use gpu_vmm::pool::{Pool, prometheus};
use gpu_vmm::{AnyBackend, Bytes};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(9464), |port| port.parse())?;
    let pool = Pool::builder(&AnyBackend::open_best()?).build()?;
    let _block = pool.alloc(Bytes::mib(3))?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("http://{}/metrics", listener.local_addr()?);
    for connection in listener.incoming() {
        // A client that breaks off affects no other.
        if let Err(error) = connection.and_then(|connection| answer(connection, &pool)) {
            eprintln!("{error}");
        }
    }
    Ok(())
}

/// Answers one request.
fn answer(mut connection: TcpStream, pool: &Pool<AnyBackend>) -> std::io::Result<()> {
    // A client that sends nothing, or a line without an end, must not stop the server.
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut request = String::new();
    BufReader::new(connection.try_clone()?.take(4096)).read_line(&mut request)?;
    let (status, body) = match request.starts_with("GET /metrics ") {
        true => ("200 OK", prometheus(&[("example", pool.stats())])),
        false => ("404 Not Found", "the statistics are at /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        connection,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder(&AnyBackend::open_best()?).build()?;
    let _block = pool.alloc(Bytes::mib(3))?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    for (path, expected) in
        [("/metrics", "\ngpu_vmm_pool_live_bytes{pool=\"example\"} 3145728\n"), ("/", "404")]
    {
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        // The server reads one line. If it left others unread, the system would reset the connection.
        write!(client, "GET {path} HTTP/1.0\r\n")?;
        answer(listener.accept()?.0, &pool)?;
        let mut response = String::new();
        client.read_to_string(&mut response)?;
        assert!(response.contains(expected), "{response}");
    }
    Ok(())
}
