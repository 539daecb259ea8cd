package brokertest_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestServiceBusRefusesWrongKeys(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	for name, connection := range map[string]string{
		"another's secret": strings.Replace(b.ConnectionString, "SharedAccessKey=", "SharedAccessKey=x", 1),
		"another name":     strings.Replace(b.ConnectionString, "RootManage", "Nobodys", 1),
	} {
		client, managing := b.dial(connection)
		s, err := client.NewSender(q, nil)
		b.must(err)
		m := text("x")
		t.Log(name)
		b.code(s.SendMessage(b.ctx, &m, nil), azservicebus.CodeUnauthorizedAccess)
		if _, err := managing.GetQueue(b.ctx, q, nil); status(err) != 401 {
			t.Errorf("%s: %v, want status 401", name, err)
		}
	}
}

// A token is checked before the existence of the entity, which a client without rights must not
// learn.
func TestServiceBusComparesTokensWithAddresses(t *testing.T) {
	b := ownBus(t)
	mine, other := b.queue(admin.QueueProperties{}), b.queue(admin.QueueProperties{})
	host := b.host()
	client, _ := b.dial("Endpoint=sb://" + host + ";UseDevelopmentEmulator=true;SharedAccessSignature=" + b.sign("amqp://"+host+"/"+mine))
	for entity, code := range map[string]azservicebus.Code{mine: "", other: azservicebus.CodeUnauthorizedAccess, mine + "-2": azservicebus.CodeUnauthorizedAccess} {
		s, err := client.NewSender(entity, nil)
		b.must(err)
		m := text("x")
		if err = s.SendMessage(b.ctx, &m, nil); code == "" {
			b.must(err)
		} else {
			b.code(err, code)
		}
	}
}

// sign returns a token of the namespace's key for an address.
func (b *bus) sign(address string) string {
	key := func(name string) string {
		_, rest, _ := strings.Cut(b.ConnectionString, ";"+name+"=")
		value, _, _ := strings.Cut(rest, ";")
		return value
	}
	resource, expiry := strings.ToLower(url.QueryEscape(address)), strconv.FormatInt(farAway().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key("SharedAccessKey")))
	mac.Write([]byte(resource + "\n" + expiry))
	return fmt.Sprintf("SharedAccessSignature sr=%s&sig=%s&se=%s&skn=%s", resource,
		url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil))), expiry, key("SharedAccessKeyName"))
}

func TestServiceBusGrantsTheRightsOfAKeyOnly(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	sends, managing := b.dial(b.Control.Restricted("Send"))
	s, err := sends.NewSender(q, nil)
	b.must(err)
	m := text("x")
	b.must(s.SendMessage(b.ctx, &m, nil))
	r, err := sends.NewReceiverForQueue(q, nil)
	b.must(err)
	_, err = r.ReceiveMessages(b.ctx, 1, nil)
	b.code(err, azservicebus.CodeUnauthorizedAccess)
	if _, err := managing.CreateQueue(b.ctx, q+"-2", nil); status(err) != 401 {
		t.Errorf("create without the right to: %v, want status 401", err)
	}
	listens, _ := b.dial(b.Control.Restricted("Listen"))
	s, err = listens.NewSender(q, nil)
	b.must(err)
	b.code(s.SendMessage(b.ctx, &m, nil), azservicebus.CodeUnauthorizedAccess)
	r, err = listens.NewReceiverForQueue(q, nil)
	b.must(err)
	b.must(r.CompleteMessage(b.ctx, b.receive(r), nil))
}

func TestServiceBusNamesMissingEntities(t *testing.T) {
	b := newBus(t)
	none := brokertest.Name(t, "none")
	m := text("x")
	b.code(b.sender(none).SendMessage(b.ctx, &m, nil), azservicebus.CodeNotFound)
	_, err := b.receiver(none).ReceiveMessages(b.ctx, 1, nil)
	b.code(err, azservicebus.CodeNotFound)
}

func TestChaosServiceBusSurvivesDrops(t *testing.T) {
	brokertest.Fault(t)
	b := azureBus(t)
	q := b.queue(admin.QueueProperties{LockDuration: b.brief(), MaxDeliveryCount: to.Ptr[int32](1000)})
	const total = 300
	var working sync.WaitGroup
	working.Go(func() {
		s := b.sender(q)
		for i := range total {
			m := text(fmt.Sprint(i))
			if err := s.SendMessage(b.ctx, &m, nil); err != nil {
				t.Errorf("send: %v", err)
			}
			if i%100 == 50 {
				b.Control.Drop()
			}
		}
	})
	seen := make(map[string]bool)
	for r := b.receiver(q); len(seen) < total; {
		messages, err := r.ReceiveMessages(b.ctx, 20, nil)
		if b.ctx.Err() != nil {
			t.Fatalf("got %d of %d: %v", len(seen), total, err)
		}
		for _, m := range messages {
			seen[string(m.Body)] = true
			ctx, cancel := context.WithTimeout(b.ctx, time.Second)
			_ = r.CompleteMessage(ctx, m, nil) // on failure it is delivered again
			cancel()
		}
	}
	working.Wait()
}

// It takes some seconds: so long the client library waits for an answer.
func TestServiceBusKeepsUnansweredMessages(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{RequiresDuplicateDetection: to.Ptr(true)})
	s, r := b.sender(q), b.receiver(q)
	first := text("first")
	b.must(s.SendMessage(b.ctx, &first, nil))
	b.must(r.CompleteMessage(b.ctx, b.receive(r), nil))

	b.Control.Set(brokertest.ServiceBusFaults{Unanswered: 1})
	m := azservicebus.Message{Body: []byte("x"), MessageID: to.Ptr("id")}
	b.must(s.SendMessage(b.ctx, &m, nil)) // the SDK sends it twice
	got := b.receive(r)
	b.equal(string(got.Body), "x")

	b.Control.Set(brokertest.ServiceBusFaults{Unanswered: 1})
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	if err := r.CompleteMessage(ctx, got, nil); err == nil {
		t.Error("a settle without answer succeeded")
	}
	b.lost(r.CompleteMessage(b.ctx, onManagement(got), nil)) // it was completed
	b.nothing(b.receiver(q))
}

func TestServiceBusThrottles(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	m := text("x")
	b.must(s.SendMessage(b.ctx, &m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{Throttle: 2}) // the SDK tries again
	b.must(s.SendMessage(b.ctx, &m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{Throttle: 1000})
	if err := s.SendMessage(b.ctx, &m, nil); err == nil || !strings.Contains(err.Error(), "com.microsoft:server-busy") {
		t.Errorf("got %v, want server-busy", err)
	}
	if _, err := b.admin.GetQueue(b.ctx, q, nil); status(err) != 429 {
		t.Errorf("got %v, want status 429", err)
	}
	b.Control.Set(brokertest.ServiceBusFaults{})
	b.must(s.SendMessage(b.ctx, &m, nil))
	b.equal(len(b.drain(q)), 3)
}

func TestServiceBusRefusesLocks(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	r := b.receiver(q)
	m := b.receive(r)
	b.Control.Set(brokertest.ServiceBusFaults{RefuseRenewals: true})
	b.lost(r.RenewMessageLock(b.ctx, m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{RefuseLocks: true})
	b.lost(r.CompleteMessage(b.ctx, onManagement(m), nil))
	b.lost(r.CompleteMessage(b.ctx, m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{})
	b.Control.LoseLocks(q)
	again := b.receive(r)
	b.equal(again.DeliveryCount, uint32(2))
	b.lost(r.CompleteMessage(b.ctx, onManagement(m), nil))
	b.must(r.CompleteMessage(b.ctx, again, nil))
}

func TestServiceBusDelaysAnswers(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	m := text("x")
	b.must(s.SendMessage(b.ctx, &m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{Delay: 200 * time.Millisecond})
	start := time.Now()
	b.must(s.SendMessage(b.ctx, &m, nil))
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

func TestServiceBusFallsSilent(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	m := text("x")
	b.must(s.SendMessage(b.ctx, &m, nil))
	b.Control.Set(brokertest.ServiceBusFaults{Silent: true})
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	if err := s.SendMessage(ctx, &m, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestServiceBusDetachesLinks(t *testing.T) {
	b := azureBus(t)
	q := b.queue(admin.QueueProperties{})
	s, r := b.sender(q), b.receiver(q)
	m := text("x")
	for range 3 {
		b.must(s.SendMessage(b.ctx, &m, nil))
		got := b.receive(r)
		b.Control.Detach(q, "")
		b.must(r.CompleteMessage(b.ctx, onManagement(got), nil))
	}
}

func TestServiceBusRefusesConnections(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.Control.Set(brokertest.ServiceBusFaults{RefuseConnections: true})
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	m := text("x")
	if err := b.sender(q).SendMessage(ctx, &m, nil); err == nil {
		t.Error("it was sent")
	}
	b.Control.Set(brokertest.ServiceBusFaults{})
	b.send(q, m)
	b.equal(string(b.complete(q).Body), "x")
}

func TestServiceBusEndsBadConnectionsOnly(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	host := b.host()
	const open = "\x41MQP\x00\x01\x00\x00"
	for name, said := range map[string]string{
		"another protocol":    "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"a frame of no size":  open + "\x00\x00\x00\x00\x02\x00\x00\x00",
		"a frame too large":   open + "\xff\xff\xff\xff\x02\x00\x00\x00\x00\x53\x10",
		"a frame too small":   open + "\x00\x00\x00\x09\x02\x00\x00\x00\x00",
		"no performative":     open + "\x00\x00\x00\x0d\x02\x00\x00\x00\x00\x53\xee\x45\x45",
		"attach before begin": open + "\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x12\x45",
		"an endless list":     open + "\x00\x00\x00\x14\x02\x00\x00\x00\x00\x53\x10\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
	} {
		t.Log(name)
		converse(b, host, []byte(said))
	}
	b.send(q, text("x"))
	b.equal(string(b.complete(q).Body), "x")
}

// go-amqp ends a session without its begin when the context of NewSession ended before the begin
// was sent.
func TestServiceBusIgnoresTheEndOfAMissingSession(t *testing.T) {
	b := ownBus(t)
	const (
		open  = "\x41MQP\x00\x01\x00\x00\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01x"
		begin = "\x00\x00\x00\x14\x02\x00\x00\x00\x00\x53\x11\xc0\x07\x04\x40\x43\x52\x64\x52\x64"
		end   = "\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x17\x45"
		last  = "\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x18\x45" // close
	)
	for name, said := range map[string]string{
		"an end before begin": open + end + begin + last,
		"a second end":        open + begin + end + end + last,
	} {
		answer := converse(b, b.host(), []byte(said))
		if !bytes.Contains(answer, []byte("\x00\x53\x11")) || !bytes.Contains(answer, []byte("\x00\x53\x18")) {
			t.Errorf("%s: the answer %x has no begin or no close", name, answer)
		}
	}
}

// converse writes to the broker, and returns what it reads until the broker ends the connection.
// Frames before the second protocol header are answered first.
func converse(b *bus, host string, said []byte) []byte {
	b.Helper()
	c, err := net.Dial("tcp", host)
	b.must(err)
	defer c.Close()
	if at := bytes.LastIndex(said, []byte("AMQP\x00")); at > 0 {
		_, err := c.Write(said[:at])
		b.must(err)
		for got := []byte{}; !bytes.Contains(got, []byte("\x00\x53\x44")); { // the outcome
			part := make([]byte, 100)
			n, err := c.Read(part)
			b.must(err)
			got = append(got, part[:n]...)
		}
		said = said[at:]
	}
	if _, err := c.Write(said); err == nil { // else it is closed already
		_ = c.(*net.TCPConn).CloseWrite()
	}
	b.must(c.SetDeadline(time.Now().Add(20 * time.Second)))
	var timeout net.Error
	answer, err := io.ReadAll(c)
	if errors.As(err, &timeout) && timeout.Timeout() {
		b.Error("the connection was not closed")
	}
	return answer
}

// recorder forwards a connection and records the client's bytes.
type recorder struct {
	net.Conn
	said *bytes.Buffer
}

func (r recorder) Write(p []byte) (int, error) {
	r.said.Write(p) // by one goroutine of the SDK
	return r.Conn.Write(p)
}

func TestChaosServiceBusCorruptedConnections(t *testing.T) {
	if brokertest.Fault(t) {
		corruptConnections(t, 10_000)
	} else {
		corruptConnections(t, 300)
	}
}

func TestServiceBusOutlivesCorruptedConnections(t *testing.T) { corruptConnections(t, 60) }

func corruptConnections(t *testing.T, rounds int) {
	t.Helper()
	b := azureBus(t)
	q := b.queue(admin.QueueProperties{MaxDeliveryCount: to.Ptr[int32](1000), LockDuration: b.brief()})
	host := b.host()
	said := b.record(q, host)
	start := bytes.LastIndex(said, []byte("AMQP\x00")) + 8
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		corrupt := bytes.Clone(said)
		for range random.IntN(4) {
			corrupt[start+random.IntN(len(corrupt)-start)] = byte(random.Uint32())
		}
		corrupt = corrupt[:len(corrupt)/4+random.IntN(len(corrupt)*3/4)]
		converse(b, host, corrupt)
	}
	other := b.queue(admin.QueueProperties{})
	b.send(other, text("x"))
	b.equal(string(b.complete(other).Body), "x")
	if state := b.Control.State(); state.Memory > 1<<30 {
		t.Errorf("the broker has %d MiB", state.Memory>>20)
	}
}

// record returns the bytes that the SDK sends when it sends, receives, settles and makes requests.
func (b *bus) record(queue, host string) []byte {
	b.Helper()
	var said bytes.Buffer
	client, err := azservicebus.NewClientFromConnectionString(b.ConnectionString, &azservicebus.ClientOptions{
		NewWebSocketConn: func(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", host)
			return recorder{c, &said}, err
		},
	})
	b.must(err)
	s, err := client.NewSender(queue, nil)
	b.must(err)
	r, err := client.NewReceiverForQueue(queue, nil)
	b.must(err)
	for i := range 4 {
		b.must(s.SendMessage(b.ctx, &azservicebus.Message{Body: []byte("x"), ApplicationProperties: map[string]any{"i": i}}, nil))
	}
	m := b.receive(r)
	b.must(r.RenewMessageLock(b.ctx, m, nil))
	b.must(r.CompleteMessage(b.ctx, m, nil))
	b.must(r.AbandonMessage(b.ctx, b.receive(r), nil))
	b.must(r.DeadLetterMessage(b.ctx, b.receive(r), nil))
	later := text("later")
	_, err = s.ScheduleMessages(b.ctx, []*azservicebus.Message{&later}, farAway(), nil)
	b.must(err)
	b.must(client.Close(b.ctx))
	return said.Bytes()
}

// identity is a credential like those of azidentity.
type identity string

func (i identity) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(i), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func TestServiceBusAdmitsIdentitiesToItsAdminInterface(t *testing.T) {
	b := ownBus(t)
	b.Control.Admit("token-of-a-reader", "Listen")
	b.Control.Admit("token-of-an-owner", "Manage", "Send", "Listen")
	host := b.host()
	for token, want := range map[identity]int{"token-of-a-reader": 401, "token-of-a-stranger": 401, "token-of-an-owner": 0} {
		options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: b.AdminTransport()}}
		c, err := admin.NewClient(host, token, options)
		b.must(err)
		if _, err := c.CreateQueue(b.ctx, "q", nil); status(err) != want || want == 0 && err != nil {
			t.Errorf("%s: %v, want status %d", token, err, want)
		}
	}
}

func TestServiceBusAdmitsIdentitiesByTLS(t *testing.T) {
	b := ownBus(t)
	b.Control.Admit("token-of-a-sender", "Send")
	q := b.queue(admin.QueueProperties{})
	host, address, config := b.TLS(t)
	connect := func(token identity) *azservicebus.Client {
		config := config.Clone()
		config.ServerName = host
		client, err := azservicebus.NewClient(host, token, &azservicebus.ClientOptions{TLSConfig: config, CustomEndpoint: address})
		b.must(err)
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		return client
	}
	known, unknown := connect("token-of-a-sender"), connect("token-of-a-stranger")
	m := text("x")
	s, err := known.NewSender(q, nil)
	b.must(err)
	b.must(s.SendMessage(b.ctx, &m, nil))
	r, err := known.NewReceiverForQueue(q, nil)
	b.must(err)
	_, err = r.ReceiveMessages(b.ctx, 1, nil)
	b.code(err, azservicebus.CodeUnauthorizedAccess)
	s, err = unknown.NewSender(q, nil)
	b.must(err)
	b.code(s.SendMessage(b.ctx, &m, nil), azservicebus.CodeUnauthorizedAccess)
	b.equal(string(b.complete(q).Body), "x")
}
