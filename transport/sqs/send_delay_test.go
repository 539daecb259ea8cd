package sqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// patience bounds each wait for the stand-in: the end of a test that hangs.
const patience = 3 * time.Minute

// quick are hops for tests: a message waits for a second in the queue, and SQS keeps back what is
// due in two.
var quick = delayeddelivery.DelayChain{Longest: 2 * time.Second, Step: time.Second}

const (
	// hopLease is for who sends on: what is not completed comes again after it.
	hopLease = 5 * time.Second
	// longLease is for who calls arrivals, which expects no message twice.
	longLease = 30 * time.Second
)

// hopper is a connection for an endpoint with quick hops.
func hopper(t *testing.T, endpoint string, raw bool, lease time.Duration) *conn {
	t.Helper()
	tr := Transport{Endpoint: brokertest.SQS(t), RawBody: raw, Lease: lease, Config: &aws.Config{
		Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}}
	opened, err := tr.Open(t.Context(), transport.Env{Endpoint: endpoint, Instance: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	c, ok := opened.(*conn)
	if !ok {
		t.Fatalf("it is a %T", opened)
	}
	c.chain = quick
	return c
}

// endpointWithHops has queues for quick hops.
func endpointWithHops(t *testing.T) string {
	t.Helper()
	endpoint := brokertest.Name(t, "billing")
	c := hopper(t, endpoint, false, hopLease)
	fifo := endpoint + delaySuffix
	if _, err := c.queues.CreateQueue(t.Context(), &sqs.CreateQueueInput{
		QueueName: &fifo, Attributes: map[string]string{"FifoQueue": "true", "DelaySeconds": "1"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Install(t.Context(), transport.Plan{Delays: true, Queues: []transport.Queue{{Name: endpoint}}}); err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// delayed sends a message that is due after d, by hops whatever d is.
func delayed(t *testing.T, c *conn, queue string, m *transport.Message, d time.Duration) {
	t.Helper()
	op := &transport.Operation{Queue: queue, Message: m}
	to, e, err := c.longDelay(t.Context(), op, d, c.encode(m, time.Now(), d, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.send(t.Context(), to, e); err != nil {
		t.Fatal(err)
	}
}

func delayedMessage(id string) *transport.Message {
	return &transport.Message{
		ID: id, Body: []byte("body of " + id + " \x00é😀"),
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}, header.Field{Name: "Of", Value: "é " + id}),
	}
}

// work works on the satellites of a connection, as an endpoint does, until the test ends. Of each
// message that was sent on, fate says whether it is completed.
func work(t *testing.T, c *conn, fate func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(cancel)
	own, err := c.Satellites(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range own {
		r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: s.Queue})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for ctx.Err() == nil {
				ds, _ := r.Receive(ctx, 10) // an error ends with ctx, or is made up for by the next call
				for _, d := range ds {
					all.Go(func() { relay(ctx, t, s, d, fate) })
				}
			}
		})
	}
}

func relay(ctx context.Context, t *testing.T, s transport.Satellite, d transport.Delivery, fate func() bool) {
	ops, err := s.Handle(ctx, d.Message())
	if err != nil || len(ops) > 0 {
		if ctx.Err() == nil {
			t.Errorf("handle: %v, %d operations", err, len(ops))
		}
		return
	}
	if os.Getenv(hopsOf) != "" {
		fmt.Println(sentOn)
	}
	if fate() {
		_ = d.Complete(ctx) // or it comes again
	}
}

func always() bool { return true }

// arrival is a message that came to the endpoint's queue.
type arrival struct {
	*transport.Message
	at      time.Time
	attempt int
}

// arrivals receives n messages, and those that follow within a while.
func arrivals(t *testing.T, c *conn, queue string, n int, within time.Duration) (got []arrival) {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	until := time.Now().Add(within)
	for {
		ctx, cancel := context.WithDeadline(t.Context(), until)
		ds, err := r.Receive(ctx, 10)
		cancel()
		if err != nil {
			if len(got) < n {
				t.Errorf("%d of %d messages came: %v", len(got), n, err)
			}
			return got
		}
		for _, d := range ds {
			got = append(got, arrival{d.Message(), time.Now(), d.Attempt().N})
			if err := d.Complete(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if len(got) >= n {
			until = time.Now().Add(1500 * time.Millisecond)
		}
	}
}

func TestALongDelayWaitsWhereNServiceBusHasIt(t *testing.T) {
	t.Parallel()
	endpoint := endpointWithHops(t)
	c := hopper(t, endpoint, false, hopLease)
	op := transport.Operation{Queue: endpoint, Message: delayedMessage("m"), After: 20*time.Minute + time.Millisecond}
	if _, err := c.Dispatch(t.Context(), []transport.Operation{op, op}); err != nil {
		t.Fatal(err)
	}
	in, err := c.inFlight(t.Context(), endpoint+delaySuffix)
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for len(groups) < 2 {
		out, err := c.queues.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: &in.url, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageAttributeNames: []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Messages {
			if got, _ := text(&m, delaySeconds); got != "1201" {
				t.Errorf("the delay is %q", got)
			}
			if got, _ := text(&m, header.MessageID); got != "m" {
				t.Errorf("the message's id is %q", got)
			}
			if id := m.Attributes[deduplicationID]; id != m.Attributes[messageGroup]+".1" {
				t.Errorf("the deduplication id is %q in group %q", id, m.Attributes[messageGroup])
			}
			groups = append(groups, m.Attributes[messageGroup])
		}
	}
	if groups[0] == groups[1] {
		t.Errorf("two deferrals of a message are both %q", groups[0])
	}
}

func TestAMessageHopsUntilItIsDue(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]bool{"envelope": false, "raw": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := endpointWithHops(t)
			c := hopper(t, endpoint, raw, longLease)
			work(t, c, always)
			sent := time.Now()
			want := delayedMessage("m")
			delayed(t, c, endpoint, want, 5*time.Second)
			got := arrivals(t, c, endpoint, 1, patience)
			if len(got) != 1 {
				t.Fatalf("%d messages came", len(got))
			}
			if after := got[0].at.Sub(sent); after < 5*time.Second {
				t.Errorf("it came after %v", after)
			}
			if got[0].attempt != 1 {
				t.Errorf("it came in attempt %d", got[0].attempt)
			}
			got[0].NativeID, got[0].Native = "", nil
			if diff := cmp.Diff(want, got[0].Message, cmp.Comparer(func(a, b header.Map) bool {
				return string(a.AppendJSON(nil)) == string(b.AppendJSON(nil))
			})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An endpoint of NServiceBus sends to the queue by the message's own id, which it takes for every
// deferral.
func TestMessagesThatNServiceBusDelaysHop(t *testing.T) {
	t.Parallel()
	endpoint := endpointWithHops(t)
	c := hopper(t, endpoint, false, longLease)
	url, err := c.queueURL(t.Context(), endpoint+delaySuffix)
	if err != nil {
		t.Fatal(err)
	}
	attribute := func(s string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
	}
	const id = "5b3e8a1c-2f84-4d0e-9a3b-b0a5008f6b2d"
	sent := time.Now()
	if _, err := c.queues.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{{
		Id: aws.String("0"), MessageBody: aws.String(`{"Headers":{"NServiceBus.MessageId":"` + id + `","A":"B"},"Body":"aGVsbG8="}`),
		MessageGroupId: aws.String(id), MessageDeduplicationId: aws.String(id),
		MessageAttributes: map[string]types.MessageAttributeValue{delaySeconds: attribute("4"), header.MessageID: attribute(id)},
	}}}); err != nil {
		t.Fatal(err)
	}
	work(t, c, always)
	got := arrivals(t, c, endpoint, 1, patience)
	if len(got) != 1 || got[0].ID != id || string(got[0].Body) != "hello" || got[0].Headers.Get("A") != "B" {
		t.Fatalf("what came is %+v", got)
	}
	if after := got[0].at.Sub(sent); after < 4*time.Second {
		t.Errorf("it came after %v", after)
	}
	if left := got[0].Native; left[delaySeconds] != "" || left[hopDue] != "" {
		t.Errorf("the delay is still on it: %v", left)
	}
}

// What was sent on and could not be completed comes again. It does not go on twice: the process
// knows, and when it is killed, the queue does for some minutes. Only the last hop of a killed
// process may be repeated: who receives knows that.
func TestHopsLoseNothingWhenTheyAreNotCompleted(t *testing.T) {
	t.Parallel()
	const messages = 30
	endpoint := endpointWithHops(t)
	sometimes := func() bool { return rand.IntN(3) > 0 }
	work(t, hopper(t, endpoint, false, hopLease), sometimes)
	work(t, hopper(t, endpoint, false, hopLease), sometimes) // which knows nothing of what the other has sent on
	c := hopper(t, endpoint, false, longLease)
	due := map[string]time.Time{}
	seed := rand.Uint64()
	t.Logf("the delays have seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range messages {
		d := 3*time.Second + time.Duration(random.Int64N(int64(3*time.Second)))
		m := delayedMessage("m" + strconv.Itoa(i))
		due[m.ID] = time.Now().Add(d).Truncate(time.Millisecond) // the stand-in has milliseconds
		delayed(t, c, endpoint, m, d)
	}
	came := map[string]int{}
	for _, a := range arrivals(t, c, endpoint, messages, patience) {
		came[a.ID]++
		if early := due[a.ID].Sub(a.at); early > 0 {
			t.Errorf("%s came %v early", a.ID, early)
		}
	}
	if len(came) != messages {
		t.Errorf("%d of %d messages came", len(came), messages)
	}
	for id, n := range came {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

func TestWhatWasSentOnIsNotSentOnAgainByTheSameProcess(t *testing.T) {
	t.Parallel()
	endpoint := endpointWithHops(t)
	c := hopper(t, endpoint, false, hopLease)
	var mu sync.Mutex
	seen := map[string]int{}
	first := func(id string) bool {
		mu.Lock()
		defer mu.Unlock()
		seen[id]++
		return seen[id] > 1
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	handle := c.sendOn(endpoint)
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: endpoint + delaySuffix})
	if err != nil {
		t.Fatal(err)
	}
	delayed(t, c, endpoint, delayedMessage("m"), 2*time.Second)
	for range 2 {
		ds, err := r.Receive(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := handle(ctx, ds[0].Message()); err != nil {
			t.Fatal(err)
		}
		if first(ds[0].Message().ID) {
			err = ds[0].Complete(ctx)
		} else {
			err = ds[0].Retry(ctx) // the completion got lost
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := arrivals(t, c, endpoint, 1, patience); len(got) != 1 {
		t.Errorf("it came %d times", len(got))
	}
}

// The stand-in knows no groups in standard queues.
func TestAMessageThatHopsKeepsItsGroup(t *testing.T) {
	c := newConn((&Transport{}).withDefaults(), clients{}, transport.Env{})
	hop := delayeddelivery.Hop{Message: "m", Deferral: "d", Number: 1}
	now := time.Now()
	e := c.hopEntry(&payload{body: "b", group: "acme"}, hop, 40*time.Minute, time.Time{})
	for n := range 2 {
		if e.group != hop.Group() {
			t.Errorf("hop %d is in group %q", n, e.group)
		}
		m := types.Message{Body: &e.body, MessageAttributes: map[string]types.MessageAttributeValue{}, Attributes: map[string]string{
			sentTimestamp: strconv.FormatInt(now.UnixMilli(), 10), deduplicationID: e.dedup, receiveCount: "1",
			firstReceived: strconv.FormatInt(now.Add(maxDelay).UnixMilli(), 10),
		}}
		for _, a := range e.attributes {
			m.MessageAttributes[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
		}
		now = now.Add(maxDelay)
		r := asHop(&m, now)
		h := readHop(&r.Message)
		_, e = c.onward("billing", &h)
	}
	if e.group != "acme" || e.dedup != "" || len(e.attributes) != 1 || e.attributes[0].name != hopAttribute {
		t.Errorf("what arrives is %+v", e)
	}
}

func TestAQueueWithoutHopsRefusesLongDelaysWithAdvice(t *testing.T) {
	endpoint := brokertest.Name(t, "billing")
	c := hopper(t, endpoint, false, hopLease)
	if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: endpoint}}}); err != nil {
		t.Fatal(err)
	}
	for queue, advice := range map[string]string{endpoint: "holdfast endpoint create", endpoint + "x": "no such queue"} {
		op := transport.Operation{Queue: queue, Message: delayedMessage("m"), After: time.Hour}
		_, err := c.Dispatch(t.Context(), []transport.Operation{op})
		if err == nil || !strings.Contains(err.Error(), advice) || !strings.Contains(fmt.Sprint(err), transport.ErrNoQueue.Error()) {
			t.Errorf("%s: %v", queue, err)
		}
	}
}

// Messages in the dead-letter queue of SQS move to the error queue.
func TestDeadLettersOfSQSMoveToTheErrorQueue(t *testing.T) {
	t.Parallel()
	endpoint := brokertest.Name(t, "Shop.Billing")
	c := hopper(t, endpoint, false, hopLease)
	c.cfg.ReceiveLimit = 2
	if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: endpoint}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Dispatch(t.Context(), []transport.Operation{{Queue: endpoint, Message: delayedMessage("m")}}); err != nil {
		t.Fatal(err)
	}
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		ds, err := r.Receive(t.Context(), 1)
		if err != nil || ds[0].Attempt().N != n+1 {
			t.Fatalf("delivery %d: %v", n+1, err)
		}
		if err := ds[0].Retry(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = r.Receive(ctx, 1) }() // SQS counts this delivery
	own, err := c.Satellites(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(own) != 1 || own[0].Queue != endpoint+DeadLettersSuffix {
		t.Fatalf("the satellites are %+v", own)
	}
	dead, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: own[0].Queue})
	if err != nil {
		t.Fatal(err)
	}
	ds, err := dead.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = own[0].Handle(t.Context(), ds[0].Message())
	if want := (&transport.DeadLetteredError{Queue: endpoint, Reason: "it was received more often than the queue's maxReceiveCount allows", Count: 2}); !cmp.Equal(err, error(want)) {
		t.Errorf("the error is %v, want %v", err, want)
	}
	if ds[0].Message().ID != "m" {
		t.Errorf("the message is %+v", ds[0].Message())
	}
}

// A message that just fits must not grow on its way: SQS would refuse it for ever.
func TestAMessageThatJustFitsHopsWithoutGrowing(t *testing.T) {
	c := newConn(Transport{MaxMessage: minMessage}, clients{}, transport.Env{})
	p := payload{attributes: []attribute{{delaySeconds, "1801"}}}
	p.body = strings.Repeat("x", minMessage-p.size())
	hop := delayeddelivery.Hop{Message: "m", Deferral: "d", Number: 2}
	if e := c.hopEntry(&p, hop, 15*time.Minute, time.Now()); e.size() > minMessage {
		t.Errorf("it has grown to %d bytes", e.size())
	}
	p.body = p.body[100:]
	if e := c.hopEntry(&p, hop, 15*time.Minute, time.Now()); len(e.attributes) != 2 {
		t.Errorf("there is room for when it is due, but its attributes are %v", e.attributes)
	}
}
