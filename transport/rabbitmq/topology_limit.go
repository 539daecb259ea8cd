package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
)

// returnLimit is the delivery limit of a queue. A message that returns more often is dropped or
// dead-lettered.
type returnLimit struct {
	returns    int64
	byArgument bool // of the queue, which cannot be changed
	isSet      bool // by an argument or a policy, and not the broker's default
	deadLetter bool
}

// limit returns the delivery limit of a queue; not ok where it has none, or one that is as good as
// none.
func (q managedQueue) limit(v version) (l returnLimit, ok bool) {
	args, policies := settings(q.Arguments), settings(q.Effective)
	byArgument, hasArgument := number(args["x-delivery-limit"])
	byPolicy, hasPolicy := number(policies["delivery-limit"])
	l = returnLimit{byArgument: hasArgument, isSet: hasArgument || hasPolicy}
	_, exchange1 := args["x-dead-letter-exchange"]
	_, exchange2 := policies["dead-letter-exchange"]
	l.deadLetter = exchange1 || exchange2
	switch reported, ok := number(q.DeliveryLimit); {
	case q.Type != string(Quorum), q.DeliveryLimit == "unlimited":
		return l, false
	case ok: // from 4.0
		l.returns = reported
	case v.atLeast(release40) || !l.isSet:
		return l, false
	case hasArgument && hasPolicy:
		l.returns = min(byArgument, byPolicy)
	default:
		l.returns = cmp.Or(byArgument, byPolicy)
	}
	l.returns = max(l.returns, 0) // before 4.0 a negative limit is 0
	return l, l.returns < liftedLimit
}

// isLiftable reports whether the policy of [liftPolicy] lifts the limit of q.
func (l returnLimit) isLiftable(q managedQueue) bool { return !l.isSet && q.Policy == "" }

// err returns the limit as an error.
func (l returnLimit) err(q managedQueue) error {
	if l.isLiftable(q) {
		return errors.New(l.advice(q))
	}
	return otherLimitError(l.advice(q))
}

// advice returns the effect of the limit and how it is lifted.
func (l returnLimit) advice(q managedQueue) string {
	verb := "drops"
	if l.deadLetter {
		verb = "dead-letters"
	}
	effect := fmt.Sprintf("the broker %s a message that returns more than %d times", verb, l.returns)
	switch {
	case l.byArgument:
		return effect + ", by the argument x-delivery-limit, with which no endpoint of NServiceBus starts on the queue: " +
			"delete it while it is empty, and create it again with Install"
	case l.isSet:
		return fmt.Sprintf("%s, by policy %s, with which no endpoint of NServiceBus starts on the queue: leave out delivery-limit "+
			"there, or set it to %d", effect, q.policies(), liftedLimit)
	case q.Policy != "":
		return fmt.Sprintf("%s. Only one policy applies to a queue, here %q: add \"delivery-limit\":%d to it", effect, q.Policy, liftedLimit)
	}
	return effect + ", and no policy lifts that limit"
}

// otherLimitError says that a limit cannot be lifted by a policy of its own.
type otherLimitError string

func (e otherLimitError) Error() string { return string(e) }
