package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
)

// Names of the endpoints, which are those of their queues, and of the error queue.
const (
	importing  = "import"
	sales      = "sales"
	billing    = "billing"
	shipping   = "shipping"
	errorQueue = "error"
)

// handling are the endpoints that handle orders, in the order of the reports.
var handling = []string{sales, billing, shipping}

// Names of the message types, and of the header with the line that a message is about.
const (
	placeOrderType  = "Shop.PlaceOrder"
	orderPlacedType = "Shop.OrderPlaced"
	lineHeader      = "Demo.Line"
)

// OrderPlaced is the event that sales publishes for every order that it accepts.
type OrderPlaced struct {
	OrderID    string `json:"orderId"`
	CustomerID string `json:"customerId"`
	Country    string `json:"country"`
	Currency   string `json:"currency"`
	Amount     Amount `json:"amount"`
}

// retries have shorter delays than the defaults, for a user who watches.
var retries = recoverability.Config{
	Immediate: 2, Delayed: 2, Delays: recoverability.Delays{Delay: time.Second}, ErrorQueue: errorQueue,
}

// outcome is how an order fares at an endpoint.
type outcome int

const (
	succeeds       outcome = iota
	failsOnce              // the immediate retry succeeds
	failsForAWhile         // the first delayed retry succeeds
	failsAlways            // the order goes to the error queue
)

// failures are the error of each endpoint, and of a thousand orders those that fail once, for a while or better, always or
// better.
var failures = map[string]struct {
	why    string
	shares [3]uint32
}{
	sales:    {"stock service: connection reset", [3]uint32{30, 30, 30}},
	billing:  {"payment provider: timed out", [3]uint32{60, 85, 95}},
	shipping: {"carrier: no label printed", [3]uint32{40, 70, 78}},
}

// outcomeOf follows from the id of the order alone: it is the same in every run and in the proof.
func outcomeOf(endpoint, orderID string) outcome {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", endpoint, orderID)
	for i, share := range failures[endpoint].shares {
		if h.Sum32()%1000 < share {
			return failsOnce + outcome(i)
		}
	}
	return succeeds
}

// failure returns the error of an attempt, nil for success. Attempts count from 1 after each delayed retry.
func failure(endpoint, orderID string, attempt, delayed int) error {
	o := outcomeOf(endpoint, orderID)
	if o == failsAlways || o == failsForAWhile && delayed == 0 || o == failsOnce && delayed == 0 && attempt == 1 {
		return fmt.Errorf("%s (order %s)", failures[endpoint].why, orderID)
	}
	return nil
}

// config returns the configuration of an endpoint with a handler.
func (d *demo) config(name string, handler endpoint.Handler) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Transport: d.transport, Concurrency: 4, Recoverability: retries, Install: true,
		StopTimeout: 5 * time.Second, Logger: d.Log.With("endpoint", name), Handlers: []endpoint.Handler{handler},
		Messages: []endpoint.Message{
			endpoint.Command[Order](placeOrderType),
			endpoint.Event[OrderPlaced](orderPlacedType),
		},
	}
	if d.Path != "" {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	cfg.Pipeline.Recover.Use("ledger", d.recordFailure(name))
	return cfg
}

// sales publishes the orders that are valid.
func (d *demo) sales() endpoint.Config {
	return d.config(sales, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o *Order) error {
		if err := o.validate(); err != nil {
			return recoverability.Unrecoverable(err)
		}
		placed := OrderPlaced{o.OrderID, o.Customer.ID, o.ShipTo.Country, o.Currency, o.Total}
		if err := d.work(ctx, s, sales, placed); err != nil {
			return err
		}
		return s.Publish(ctx, placed,
			endpoint.MessageID(s.MessageID()+"-placed"), endpoint.Header(lineHeader, s.Header(lineHeader)))
	}))
}

// subscriber is billing or shipping.
func (d *demo) subscriber(name string) endpoint.Config {
	return d.config(name, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o *OrderPlaced) error {
		return d.work(ctx, s, name, *o)
	}))
}

// work takes its time, fails as the order's outcome says, and records a success.
func (d *demo) work(ctx context.Context, s *endpoint.Session, name string, o OrderPlaced) error {
	if err := backoff.Sleep(ctx, d.Work); err != nil {
		return err
	}
	delayed, _ := strconv.Atoi(s.Header(header.Retries)) // 0 without one
	if err := failure(name, o.OrderID, s.Attempt().N, delayed); err != nil {
		return err
	}
	line, err := strconv.Atoi(s.Header(lineHeader))
	if err != nil {
		return fmt.Errorf("header %s: %w", lineHeader, err)
	}
	return d.ledger.record(ctx, s, entry{line, name, processed, s.Attempt().N - 1, o.Currency, o.Amount, ""})
}

// recordFailure returns a behavior that records a message which is delayed or moved to the error queue.
func (d *demo) recordFailure(name string) pipeline.Behavior[*pipeline.Recover] {
	return func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
		return func(ctx context.Context, r *pipeline.Recover) error {
			outcome := failed
			switch r.Action.(type) {
			case recoverability.Delay:
				outcome = delayed
			case recoverability.MoveToError:
			default: // the message stays in its queue
				return next(ctx, r)
			}
			var o OrderPlaced // zero at sales
			if r.Headers.Get(header.EnclosedMessageTypes) == orderPlacedType {
				_ = json.Unmarshal(r.Body, &o)
			}
			line, _ := strconv.Atoi(r.Headers.Get(lineHeader)) // 0 for a foreign message
			e := entry{line, name, outcome, r.Failure.Attempt - 1, o.Currency, o.Amount, oneLine(r.Failure.Err)}
			if err := d.ledger.record(ctx, r.Sender().(*endpoint.Session), e); err != nil { //nolint:errcheck // always one
				return err
			}
			return next(ctx, r)
		}
	}
}

// rawLine is a message whose body is a line of the input.
type rawLine struct{ text []byte }

// rawSerializer writes a rawLine as it is.
type rawSerializer struct{ serialization.Serializer }

func (s rawSerializer) Marshal(v any) ([]byte, error) {
	if line, ok := v.(rawLine); ok {
		return line.text, nil
	}
	return s.Serializer.Marshal(v)
}

// importer only sends the lines.
func (d *demo) importer() endpoint.Config {
	return endpoint.Config{
		Name: importing, Transport: d.transport, SendOnly: true, Logger: d.Log.With("endpoint", importing),
		Serializers: []serialization.Serializer{rawSerializer{serialization.JSON}},
		Messages:    []endpoint.Message{endpoint.Command[rawLine](placeOrderType).To(sales)},
	}
}

// importLines sends all lines to sales and records that, in one transaction. In memory a line is sent at once.
func (d *demo) importLines(ctx context.Context, importer *endpoint.Endpoint) error {
	tx, err := d.ledger.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	for _, line := range d.input.Lines {
		no := strconv.Itoa(line.No)
		opts := []endpoint.SendOption{endpoint.MessageID(d.input.Hash + "-" + no), endpoint.Header(lineHeader, no)}
		if d.Path != "" {
			opts = append(opts, endpoint.In(tx))
		}
		if err := importer.Send(ctx, rawLine{line.Text}, opts...); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `insert into demo_import values (0, ?)`, len(d.input.Lines)); err != nil {
		return err
	}
	return tx.Commit()
}
