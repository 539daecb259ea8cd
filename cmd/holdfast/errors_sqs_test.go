package main

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// enveloped is the body of a message in NServiceBus's default form on Amazon SQS.
type enveloped struct {
	Headers map[string]string
	Body    string
}

// recordedFailure returns the recording of a message that failed in a handler of .NET.
func recordedFailure(t *testing.T) (failure enveloped) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nservicebus/sqs.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ Queue, Body string }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Queue == "error" {
			if err := json.Unmarshal([]byte(m.Body), &failure); err != nil {
				t.Fatal(err)
			}
			return failure
		}
	}
	t.Fatal("no recording of a failed message")
	return enveloped{}
}

// awsQueues is the SDK for the stand-in of onSQS, with the prefix of queues.
func awsQueues(t *testing.T) (client *sqs.Client, prefix string) {
	t.Helper()
	u, err := url.Parse(getenv(t)(transportVar))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.LoadDefaultConfig(t.Context(), config.WithRegion(u.Host), config.WithBaseEndpoint(u.Query().Get("endpoint")))
	if err != nil {
		t.Fatal(err)
	}
	return sqs.NewFromConfig(loaded), u.Query().Get("queue_prefix")
}

// A message that failed in a .NET endpoint is listed, shown and returned to that endpoint's queue,
// in a form that NServiceBus reads.
func TestAFailureOfNServiceBusIsReturnedOnAmazonSQS(t *testing.T) {
	t.Parallel()
	returnOnSQS(t, "wrapped")
}

func TestChaosFailuresOfNServiceBusOnAmazonSQS(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	for _, form := range []string{"wrapped", "not wrapped"} {
		t.Run(form, func(t *testing.T) { returnOnSQS(t, form) })
	}
}

// returnOnSQS lists, shows and returns a failure in one of the two forms that NServiceBus has.
func returnOnSQS(t *testing.T, form string) {
	t.Helper()
	failure := recordedFailure(t)
	body, err := base64.StdEncoding.DecodeString(failure.Body)
	if err != nil {
		t.Fatal(err)
	}
	id := failure.Headers["NServiceBus.MessageId"]
	wrapped, err := json.Marshal(failure)
	if err != nil {
		t.Fatal(err)
	}
	headers, err := json.Marshal(failure.Headers)
	if err != nil {
		t.Fatal(err)
	}
	sent, attributes := string(wrapped), map[string]string{"NServiceBus.MessageId": id}
	if form == "not wrapped" {
		sent, attributes["NServiceBus.AmazonSQS.Headers"] = string(body), string(headers)
	}
	onSQS(t)
	client, prefix := awsQueues(t)
	urls := map[string]*string{}
	for _, queue := range []string{"error", "Net-Peer"} {
		made, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(prefix + queue)})
		if err != nil {
			t.Fatal(err)
		}
		urls[queue] = made.QueueUrl
	}
	in := &sqs.SendMessageInput{
		QueueUrl: urls["error"], MessageBody: &sent, MessageAttributes: map[string]types.MessageAttributeValue{},
	}
	for name, value := range attributes {
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	if _, err := client.SendMessage(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	checkListed(t, failure)
	must(t, "", "errors", "retry", id)
	out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: urls["Net-Peer"], WaitTimeSeconds: 10, MessageAttributeNames: []string{"All"},
	})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("%d messages came back, %v", len(out.Messages), err)
	}
	checkReturned(t, failure, *out.Messages[0].Body)
	if out := must(t, "", "errors", "list"); out != "no messages in error\n" {
		t.Errorf("the error queue still has %s", out)
	}
}

// checkListed checks what the commands say of the failure.
func checkListed(t *testing.T, failure enveloped) {
	t.Helper()
	var e errorqueue.Entry
	if err := json.Unmarshal([]byte(must(t, "", "errors", "list", "--json")), &e); err != nil {
		t.Fatal(err)
	}
	if e.ID != failure.Headers["NServiceBus.MessageId"] || e.Queue != "Net-Peer" || e.Endpoint != "Net-Peer" || e.Type != "Interop.NetPoison" {
		t.Errorf("listed as %+v", e)
	}
	shown := must(t, "", "errors", "show", e.ID)
	for _, want := range []string{"net poison: from Go", "Interop.Handlers.Handle", "2026-11-22 15:15:32", `{"Text":"from Go"}`} {
		if !strings.Contains(shown, want) {
			t.Errorf("show lacks %q:\n%s", want, shown)
		}
	}
}

// checkReturned checks that a message is the failed one without the headers of the failure, and
// with the number of its returns.
func checkReturned(t *testing.T, failure enveloped, text string) {
	t.Helper()
	var got enveloped
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("NServiceBus cannot read it: %v: %s", err, text)
	}
	want := map[string]string{"Holdfast.Returns": "1"}
	for name, value := range failure.Headers {
		isFault := strings.HasPrefix(name, "NServiceBus.ExceptionInfo.") || strings.HasPrefix(name, "NServiceBus.Retries") ||
			name == "NServiceBus.FailedQ" || name == "NServiceBus.TimeOfFailure"
		if !isFault {
			want[name] = value
		}
	}
	if diff := cmp.Diff(want, got.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if got.Body != failure.Body {
		t.Errorf("body %s, want %s", got.Body, failure.Body)
	}
}
