package demo

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

// Names of the endpoints, of their queues, and of the error queue that they share.
const (
	importing  = "import"
	sales      = "sales"
	billing    = "billing"
	shipping   = "shipping"
	errorQueue = "error"
)

// handling are the endpoints that handle orders, in the order of the reports.
var handling = []string{sales, billing, shipping}

// retries are the demo's own: shorter than the defaults, because somebody is watching.
var retries = recoverability.Config{
	Immediate: 2, Delayed: 2, TimeIncrease: time.Second, ErrorQueue: errorQueue,
}

// Fate is how an order fares at an endpoint.
type Fate int

// A handler that fails once succeeds when it is tried again at once; one that fails
// for a while succeeds after a delayed retry; one that always fails makes the order go to
// the error queue.
const (
	Succeeds Fate = iota
	FailsOnce
	FailsForAWhile
	FailsAlways
)

// odds are how many orders in a thousand fare badly at an endpoint, and how.
type odds struct {
	once, while, always uint32
	why                 string
}

var troubles = map[string]odds{
	sales:    {once: 30, why: "stock service: connection reset"},
	billing:  {once: 60, while: 25, always: 10, why: "payment provider: timed out"},
	shipping: {once: 40, while: 30, always: 8, why: "carrier: no label printed"},
}

// fate is decided by the order alone, so that it is the same in every run and
// for those who count afterwards.
func fate(endpoint, orderID string) Fate {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", endpoint, orderID)
	dice := h.Sum32() % 1000
	o := troubles[endpoint]
	switch {
	case dice < o.once:
		return FailsOnce
	case dice < o.once+o.while:
		return FailsForAWhile
	case dice < o.once+o.while+o.always:
		return FailsAlways
	}
	return Succeeds
}

// trouble is the error of an attempt, the attempt-th since it was sent or delayed
// last, after delayed delayed retries.
func trouble(endpoint, orderID string, attempt, delayed int) error {
	failing := false
	switch fate(endpoint, orderID) {
	case FailsOnce:
		failing = attempt == 1 && delayed == 0
	case FailsForAWhile:
		failing = delayed == 0
	case FailsAlways:
		failing = true
	case Succeeds:
	}
	if !failing {
		return nil
	}
	return fmt.Errorf("%s (order %s)", troubles[endpoint].why, orderID)
}
