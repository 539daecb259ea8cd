package acceptance_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/serialization/nsbxml"
)

// The messages of the recorded .NET endpoints.
type (
	netPing struct {
		Text   string
		N      int32
		When   time.Time
		Amount json.Number
	}
	netPong     struct{ Text string }
	netHappened struct{ Text string }
	netBase     struct{ Text string }
	netPoison   struct{ Text string }
	netFlaky    struct {
		Text string
		Fail int
	}
	netPerishable struct{ Text string }
	netAsk        struct {
		ID string `json:"Id" xml:"Id"`
	}
	netAnswer struct {
		ID string `json:"Id" xml:"Id"`
	}
	netLater struct {
		Text string
		Sent time.Time
	}
	netEverything struct {
		G       string
		D       json.Number
		T       serialization.TimeSpan
		E       netColor
		B       []byte
		Nothing *int
		Utc     time.Time
		Off     time.Time
		Map     map[string]int32
		L       []string
		Big     int64
		F       float64
		U       string
	}
)

// netColor is an enum of .NET: a name in XML and a number in JSON.
type netColor int

func (c netColor) MarshalText() ([]byte, error) { return []byte([]string{"Red", "Green"}[c]), nil }

func (c *netColor) UnmarshalText(text []byte) error {
	if string(text) != "Green" {
		return errors.New("no color of the recordings")
	}
	*c = 1
	return nil
}

func (c netColor) MarshalJSON() ([]byte, error) { return json.Marshal(int(c)) }

func (c *netColor) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*int)(c)) }

func netMessages() []endpoint.Message {
	return []endpoint.Message{
		endpoint.Command[netPing]("Interop.Ping"),
		endpoint.Response[netPong]("Interop.NetPong"),
		endpoint.Event[netHappened]("Interop.NetHappened", "Interop.IHappened"),
		endpoint.Event[netBase]("Interop.IHappened"),
		endpoint.Command[netPoison]("Interop.Poison"),
		endpoint.Command[netFlaky]("Interop.Flaky"),
		endpoint.Command[netPerishable]("Interop.Perishable"),
		endpoint.Command[netAsk]("Interop.AskGo"),
		endpoint.Response[netAnswer]("Interop.GoAnswer"),
		endpoint.Command[netLater]("Interop.Later"),
		endpoint.Command[netEverything]("Interop.Everything"),
	}
}

// recorded is a message of a .NET endpoint as its broker had it.
type recorded struct {
	What    string
	Queue   string            // where it was
	ID      string            // of the message, as a header
	Headers map[string]string // as the endpoint wrote them
	Body    string
	raw     json.RawMessage
}

// record is a message in a file of recordings: the fields of all brokers.
type record struct {
	What, Queue, Table, Body string
	Properties               struct{ Headers map[string]any }
	Headers                  string
	MessageAttributes        map[string]struct{ StringValue string }
}

// recordings returns the messages of a file.
func recordings(t *testing.T, file string) (all []recorded) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../testdata/nservicebus", file))
	must(t, err)
	var raw []json.RawMessage
	must(t, json.Unmarshal(text, &raw))
	for _, raw := range raw {
		var of record
		// The keys of PostgreSQL's rows and of SQS differ by case only, which Unmarshal ignores.
		must(t, json.Unmarshal(raw, &of))
		m := recorded{What: of.What, Queue: of.Queue + of.Table, Body: of.Body, Headers: map[string]string{}, raw: raw}
		switch {
		case of.Properties.Headers != nil:
			for name, value := range of.Properties.Headers {
				if text, ok := value.(string); ok && !strings.HasPrefix(name, "x-") {
					m.Headers[name] = text
				}
			}
		case of.Headers != "":
			must(t, json.Unmarshal([]byte(of.Headers), &m.Headers))
		default:
			m.unwrap(t, of.MessageAttributes["NServiceBus.AmazonSQS.Headers"].StringValue)
		}
		// The transport of SQS writes the duration a second time for itself. The driver takes it
		// off.
		delete(m.Headers, "NServiceBus.AmazonSQS.TimeToBeReceived")
		if m.ID = m.Headers[header.MessageID]; m.ID == "" {
			t.Fatalf("%s: %q has no id", file, m.What)
		}
		all = append(all, m)
	}
	return all
}

// unwrap reads the headers of a message of SQS from an attribute or from the envelope in its body.
func (m *recorded) unwrap(t *testing.T, attribute string) {
	t.Helper()
	if attribute != "" {
		must(t, json.Unmarshal([]byte(attribute), &m.Headers))
		return
	}
	var envelope struct {
		Body    []byte
		Headers map[string]string
	}
	must(t, json.Unmarshal([]byte(m.Body), &envelope))
	m.Body, m.Headers = string(envelope.Body), envelope.Headers
}

// value returns the Go value that the body of a message of the recordings has, by its serializer
// and time of sending.
func (m *recorded) value(t *testing.T) any {
	t.Helper()
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		must(t, err)
		return at
	}
	// The texts and times of a recording are taken from there by another reader.
	field := func(name string) (text string) {
		var json map[string]any
		if unmarshalBOM(m.Body, &json) == nil {
			text, _ = json[name].(string)
			return text
		}
		_, rest, _ := strings.Cut(m.Body, "<"+name+">")
		text, _, _ = strings.Cut(rest, "<")
		return text
	}
	switch m.What {
	case "reply to a command of Go's":
		return netPong{field("Text")}
	case "command":
		return netPing{"net→go 0 ü", 0, at(field("When")), "1.25"}
	case "event with a base":
		return netHappened{"from .NET"}
	case "command (fails)":
		return netPoison{"from .NET"}
	case "command (flaky)":
		return netFlaky{"f1", 1}
	case "event published by its interface":
		return netBase{"by interface"}
	case "command with a time to be received":
		return netPerishable{"five minutes"}
	case "command of a saga: its reply has to name the saga":
		return netAsk{"saga-1"}
	case "delayed for 3 s", "delayed until a time":
		return netLater{field("Text"), at(field("Sent"))}
	case "command with an id, headers and a reply address of its own":
		amount := json.Number("0")
		if strings.Contains(m.Body, "0.0}") { // Newtonsoft's form
			amount = "0.0"
		}
		return netPing{"own id and headers", 0, at("0001-01-01T00:00:00Z"), amount}
	case "command with values of every type":
		return netEverything{
			"11111111-2222-3333-4444-555555555555", "12345.6789",
			serialization.TimeSpan(90*time.Second + 500*time.Millisecond), 1,
			[]byte{0, 1, 254, 255},
			nil,
			at("2026-11-22T10:11:12Z"), at("2026-11-22T10:11:12+02:00"),
			map[string]int32{"a": 1},
			[]string{"x", "ü", "\u2028<&>\""},
			1<<63 - 1, 0.1, "zß水🍌",
		}
	}
	t.Fatalf("no value is known for %q", m.What)
	return nil
}

// unmarshalBOM decodes JSON after a byte order mark, if there is one.
func unmarshalBOM(body string, v any) error {
	return json.Unmarshal([]byte(strings.TrimPrefix(body, "\ufeff")), v)
}

// bothFormats reads XML as well as JSON, and writes the one that the recorded endpoints wrote.
func bothFormats(xml bool) []serialization.Serializer {
	if xml {
		return []serialization.Serializer{nsbxml.XML, serialization.JSON}
	}
	return []serialization.Serializer{serialization.JSON, nsbxml.XML}
}
