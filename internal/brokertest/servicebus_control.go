package brokertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// ServiceBusControl makes a namespace of the stand-in fail, and returns its state. A call that
// does not work fails the test.
type ServiceBusControl struct {
	t         testing.TB
	url, host string
}

// ServiceBusFaults are switches. The zero value of each is off.
type ServiceBusFaults struct {
	// RefuseConnections resets every new connection at once.
	RefuseConnections bool `json:"refuseConnections"`

	// RefuseLocks answers every settlement and renewal by "lock lost", whatever the state of the
	// lock.
	RefuseLocks bool `json:"refuseLocks"`

	// RefuseRenewals does so with renewals only.
	RefuseRenewals bool `json:"refuseRenewals"`

	// Throttle is how many requests of any kind are answered by "server busy".
	Throttle int `json:"throttle"`

	// Management refuses requests on $management, also those that schedule messages and cancel
	// them.
	Management ServiceBusRefusal `json:"management"`

	// Claims refuses tokens shown to $cbs. Clients show one for a queue, and one for its
	// $management.
	Claims ServiceBusRefusal `json:"claims"`

	// Links refuses links before they are attached: to a queue, a topic, or the $management of one.
	Links ServiceBusRefusal `json:"links"`

	// Sends refuses messages sent on a link, by the operation "send", or "schedule" if one of them
	// is delayed.
	Sends ServiceBusRefusal `json:"sends"`

	// Unanswered is how many sends and settlements on a link are carried out, with a reset of the
	// connection instead of an answer.
	Unanswered int `json:"unanswered"`

	// SymbolsOnly ignores keys of an outcome's info map that are no symbols, as AMQP 1.0 permits
	// (part 2.8.16): go-amqp writes strings, so a dead letter loses its reason and description.
	// Azure accepts both.
	SymbolsOnly bool `json:"symbolsOnly"`

	// Delay is the time before the broker reads anything that was sent to it.
	Delay time.Duration `json:"-"`

	// Silent keeps connections open and answers and delivers nothing on them.
	Silent bool `json:"silent"`
}

// ServiceBusRefusal answers requests with a status and the text of the service. The zero value
// refuses none.
type ServiceBusRefusal struct {
	// Status is a status of HTTP. 503 and 429 mean that the namespace is throttled, with error code
	// 50009; 400 to a request that cancels means that the message is already being cancelled; 403
	// that the entity is full, 404 that it is missing. Links are refused by the matching condition.
	Status int `json:"status"`

	// Address is the entity whose requests are refused, for claims and links perhaps with
	// "/$management". Empty: all.
	Address string `json:"address"`

	// Operation is the refused operation of $management, such as "schedule-message" or
	// "cancel-scheduled-message". Empty: all.
	Operation string `json:"operation"`

	// Times is how many requests are refused. 0: all, until the switches are set again.
	Times int `json:"times"`

	// Late carries out a request on $management before it is refused.
	Late bool `json:"late"`
}

// Set replaces all switches.
func (c *ServiceBusControl) Set(faults ServiceBusFaults) {
	c.t.Helper()
	c.call(http.MethodPost, "/faults", struct {
		ServiceBusFaults
		Delay int64 `json:"delay"`
	}{faults, faults.Delay.Milliseconds()}, nil)
}

func (c *ServiceBusControl) allowLocks(shortest time.Duration) {
	c.t.Helper()
	c.call(http.MethodPost, "/locks", map[string]int64{"shortest": shortest.Milliseconds()}, nil)
}

// Drop resets all connections, and accepts new ones.
func (c *ServiceBusControl) Drop() {
	c.t.Helper()
	c.call(http.MethodPost, "/drop", nil, nil)
}

// Detach ends all links of an entity, or of all when it is empty, by an error: by
// amqp:link:detach-forced when the condition is empty.
func (c *ServiceBusControl) Detach(entity, condition string) {
	c.t.Helper()
	body := map[string]string{"entity": entity}
	if condition != "" {
		body["condition"] = condition
	}
	c.call(http.MethodPost, "/detach", body, nil)
}

// LoseLocks ends the locks of all messages of an entity, or of all when it is empty, as if they had
// expired.
func (c *ServiceBusControl) LoseLocks(entity string) {
	c.t.Helper()
	c.call(http.MethodPost, "/lose", map[string]string{"entity": entity}, nil)
}

// Restricted returns a connection string with a new key, which has only the rights named: Manage,
// Send, Listen.
func (c *ServiceBusControl) Restricted(rights ...string) string {
	c.t.Helper()
	var key servicebusKey
	c.call(http.MethodPost, "/key", map[string]any{"name": unique(), "rights": rights}, &key)
	return key.connectionString(c.host)
}

// Admit accepts the token of an identity, with the rights named.
func (c *ServiceBusControl) Admit(token string, rights ...string) {
	c.t.Helper()
	c.call(http.MethodPost, "/bearer", map[string]any{"token": token, "rights": rights}, nil)
}

// ServiceBusState describes a namespace's content and past requests.
type ServiceBusState struct {
	Counts struct {
		Open, Refused, Connections, Sends, Messages, Deliveries, Settles, Management, Claims, Admin int
	}
	Entities int                        // queues and topics
	Queues   map[string]ServiceBusQueue // by path; subscriptions are queues too
	Memory   int64                      // of the broker's process, in bytes
}

// ServiceBusQueue counts the messages of a queue. Active ones are all but the scheduled.
type ServiceBusQueue struct {
	Active, Scheduled, Locked, DeadLetters, TransferDeadLetters, Links int
}

// State returns the state of the namespace.
func (c *ServiceBusControl) State() ServiceBusState {
	c.t.Helper()
	var state ServiceBusState
	c.call(http.MethodGet, "/state", nil, &state)
	return state
}

func (c *ServiceBusControl) call(method, path string, body, result any) {
	c.t.Helper()
	if err := c.try(method, path, body, result); err != nil {
		c.t.Errorf("tell the Service Bus broker: %v", err)
	}
}

func (c *ServiceBusControl) try(method, path string, body, result any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, c.url+path, bytes.NewReader(text)) //nolint:noctx // a call of a millisecond, also at a test's end
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, text)
	}
	if result != nil {
		err = json.Unmarshal(text, result)
	}
	return err
}

type servicebusKey struct{ Name, Secret string }

func (k servicebusKey) connectionString(host string) string {
	return fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s;UseDevelopmentEmulator=true", host, k.Name, k.Secret)
}
