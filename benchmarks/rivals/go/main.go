// Sends requests of 500 records with the AWS SDK for Go v2, 16 in flight. ../rows.py describes its input and output.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
)

const (
	requestRecords = 500
	requestBytes   = 4_000_000
	inFlight       = 16
)

// A httpClient sends a request's body by its Read alone. The SDK closes a body once the answer's head is there, and from
// then on the body's WriteTo fails with io.EOF, so that Go ends the connection before the answer is read.
type httpClient struct{ pool kinesis.HTTPClient }

func (client httpClient) Do(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		request.Body = struct{ io.ReadCloser }{request.Body}
	}
	return client.pool.Do(request)
}

type row struct {
	key  string
	data []byte
}

func main() {
	endpoint, path, stream := os.Args[1], os.Args[2], os.Args[3]
	rows := read(path)
	pool := awshttp.NewBuildableClient().WithTransportOptions(func(transport *http.Transport) {
		transport.MaxIdleConnsPerHost = inFlight // its 10 would close connections all the time
	})
	settings, err := config.LoadDefaultConfig(context.Background(), config.WithHTTPClient(pool))
	check(err)
	client := kinesis.NewFromConfig(settings, func(options *kinesis.Options) {
		options.BaseEndpoint = &endpoint
		options.HTTPClient = httpClient{options.HTTPClient}
	})
	fmt.Println("ready")
	told := bufio.NewScanner(os.Stdin)
	for told.Scan() {
		records, err := strconv.Atoi(told.Text())
		check(err)
		put(client, stream, rows, records)
		fmt.Println(records)
	}
}

func read(path string) []row {
	content, err := os.ReadFile(path)
	check(err)
	var rows []row
	for len(content) > 0 {
		key := int(binary.LittleEndian.Uint32(content))
		end := 8 + key + int(binary.LittleEndian.Uint32(content[4:]))
		rows = append(rows, row{string(content[8 : 8+key]), content[8+key : end]})
		content = content[end:]
	}
	return rows
}

func put(client *kinesis.Client, stream string, rows []row, records int) {
	requests := make(chan []types.PutRecordsRequestEntry)
	var senders sync.WaitGroup
	for range inFlight {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for request := range requests {
				send(client, stream, request)
			}
		}()
	}
	request, size := make([]types.PutRecordsRequestEntry, 0, requestRecords), 0
	for i := range records {
		row := &rows[i%len(rows)]
		if len(request) == requestRecords || size+len(row.key)+len(row.data) > requestBytes {
			requests <- request
			request, size = make([]types.PutRecordsRequestEntry, 0, requestRecords), 0
		}
		request = append(request, types.PutRecordsRequestEntry{Data: row.data, PartitionKey: &row.key})
		size += len(row.key) + len(row.data)
	}
	if len(request) > 0 {
		requests <- request
	}
	close(requests)
	senders.Wait()
}

func send(client *kinesis.Client, stream string, request []types.PutRecordsRequestEntry) {
	answer, err := client.PutRecords(context.Background(), &kinesis.PutRecordsInput{StreamName: &stream, Records: request})
	check(err)
	if failed := aws.ToInt32(answer.FailedRecordCount); failed > 0 || len(answer.Records) != len(request) {
		log.Fatalf("%d of %d records failed", failed, len(request))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
