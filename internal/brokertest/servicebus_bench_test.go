package brokertest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// BenchmarkServiceBus measures the broker with the fastest use of the SDK: one receiver for 32
// workers, each of which sends a message and completes its own.
func BenchmarkServiceBus(b *testing.B) {
	ctx := context.Background()
	n := brokertest.ServiceBus(b)
	client, err := azservicebus.NewClientFromConnectionString(n.ConnectionString, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close(ctx)
	managing, err := admin.NewClientFromConnectionString(n.ConnectionString, &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: n.AdminTransport()}})
	if err != nil {
		b.Fatal(err)
	}
	for _, q := range []string{"in", "out"} {
		if _, err := managing.CreateQueue(ctx, q, nil); err != nil {
			b.Fatal(err)
		}
	}
	in, err := client.NewSender("in", nil)
	if err != nil {
		b.Fatal(err)
	}
	out, err := client.NewSender("out", nil)
	if err != nil {
		b.Fatal(err)
	}
	r, err := client.NewReceiverForQueue("in", nil)
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 200)
	for sent := 0; sent < b.N; {
		batch, err := in.NewMessageBatch(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		for sent < b.N && batch.AddMessage(&azservicebus.Message{Body: body}, nil) == nil {
			sent++
		}
		if err := in.SendMessageBatch(ctx, batch, nil); err != nil {
			b.Fatal(err)
		}
	}
	const workers = 32
	work := make(chan *azservicebus.ReceivedMessage, workers)
	var done sync.WaitGroup
	b.ResetTimer()
	for range workers {
		done.Go(func() {
			for m := range work {
				if err := out.SendMessage(ctx, &azservicebus.Message{Body: m.Body}, nil); err != nil {
					b.Error(err)
				}
				if err := r.CompleteMessage(ctx, m, nil); err != nil {
					b.Error(err)
				}
			}
		})
	}
	start := time.Now()
	for received := 0; received < b.N; {
		messages, err := r.ReceiveMessages(ctx, min(workers, b.N-received), nil)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range messages {
			work <- m
		}
		received += len(messages)
	}
	close(work)
	done.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "msg/s")
}
