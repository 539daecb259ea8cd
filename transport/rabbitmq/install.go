package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// installer is the part of a conn that declares and deletes queues and exchanges.
type installer struct {
	*core
	exchanges *exchanges
	delays    *delayQueues
	lifter    *lifter
}

// Install implements [transport.Installer]: it declares the queues of the plan, the exchanges of
// the topology, and the queues in which delayed messages wait. A queue that exists with other
// arguments is used as it is and logged. Where [Transport].DeliveryLimit is [None] and the broker
// has a limit of its own, it sets the policies that lift that.
func (inst *installer) Install(ctx context.Context, plan transport.Plan) error {
	return advised(inst.install(ctx, plan))
}

// advised adds what to do to an error of installing.
func advised(err error) error {
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: install as a user with the right to configure it, and run the endpoint without installing", err)
	}
	return err
}

func (inst *installer) install(ctx context.Context, plan transport.Plan) error {
	if err := inst.checkNames(plan); err != nil {
		return err
	}
	if err := inst.installDeadLetters(ctx, plan.Queues); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := inst.installQueue(ctx, q); err != nil {
			return err
		}
	}
	if err := inst.lifter.liftLimits(ctx, plan.Queues); err != nil {
		return err
	}
	if plan.Delays {
		if err := inst.delays.installDelays(ctx, plan.Queues); err != nil {
			return err
		}
	}
	for _, types := range plan.Types {
		if err := inst.onChannel(ctx, inst.declareTypes(types)); err != nil {
			return err
		}
		if err := inst.exchanges.installFormer(ctx, types); err != nil {
			return err
		}
	}
	return nil
}

func (inst *installer) installQueue(ctx context.Context, q transport.Queue) error {
	queue := inst.queuePart(q)
	err := inst.onChannel(ctx, queue.create)
	if isCode(err, amqp.PreconditionFailed) {
		err = inst.useAsItIs(ctx, queue)
	}
	if err != nil {
		return err
	}
	return inst.onChannel(ctx, declareAll(inst.topology.forQueue(q.Name)))
}

// useAsItIs logs how a queue differs from the plan. A stream is refused: it keeps messages that are
// acknowledged.
func (inst *installer) useAsItIs(ctx context.Context, queue part) error {
	findings, err := inst.compare(ctx, []part{queue})
	if err != nil || len(findings) == 0 {
		return err
	}
	detail, advice := findings[0].Detail, ""
	switch {
	case strings.Contains(detail, "x-queue-type: 'stream'"):
		return fmt.Errorf("rabbitmq: declare queue %q: it is a stream, which no endpoint can receive from: "+
			"delete it, or use another name", queue.name)
	case strings.Contains(detail, "x-queue-type"):
		advice = "use the transport's QueueType for it, or delete it while it is empty"
	case inst.deadLetters.wanted() && queue.received:
		advice = fmt.Sprintf("if an endpoint of NServiceBus is to receive from it too, set DeliveryLimit to None. Otherwise delete it "+
			"while it is empty, or give it a policy with delivery-limit %d, dead-letter-exchange \"\" and dead-letter-routing-key %q, "+
			"with which no endpoint of NServiceBus starts on it", inst.deadLetters.limit, inst.deadLetters.queue)
	case inst.isBare():
		advice = "no endpoint of NServiceBus can declare it: delete it while it is empty, and create it again with Install"
	}
	inst.log.WarnContext(ctx, "a queue exists with other arguments and is used as it is",
		"queue", queue.name, "differs", detail, "advice", advice)
	return nil
}

// installDeadLetters declares the dead-letter queue if one of the queues needs it.
func (inst *installer) installDeadLetters(ctx context.Context, queues []transport.Queue) error {
	if inst.needsDeadLetters(queues) {
		return inst.onChannel(ctx, inst.deadLetters.part().declare)
	}
	if inst.deadLetters.queue == "" && !inst.isBare() && slices.ContainsFunc(queues, inst.isLimited) {
		inst.log.WarnContext(ctx, "queues are created without a delivery limit and a dead-letter queue, for their endpoint is "+
			"not known: from 4.0 the broker drops a message that returns too often, before it delivers the message for ever. "+
			"Have the endpoint install its queues, or use holdfast endpoint create")
	}
	return nil
}

// Remove implements [transport.Remover]. With a queue it deletes the queue "<queue>.dead-letters",
// the queue that delayed messages for it pass last, in the conventional topology its exchange, and
// the policy that Install has set for it; the bindings, and with them the subscriptions, end with
// these. Messages that are delayed to the queue are in [LostQueue] when they are due.
func (inst *installer) Remove(ctx context.Context, queues ...string) error {
	for _, queue := range queues {
		err := inst.onChannel(ctx, func(ch *amqp.Channel) error {
			for _, name := range []string{queue, queue + deadLettersSuffix, queueTarget(queue).relay()} {
				// Deleting a queue or an exchange that does not exist is no error.
				if _, err := ch.QueueDelete(name, false, false, false); err != nil {
					return wrap(err, "delete queue %q", name)
				}
			}
			if inst.topology != (conventional{}) {
				return nil
			}
			return wrap(ch.ExchangeDelete(queue, false, false), "delete exchange %q", queue)
		})
		if isCode(err, amqp.AccessRefused) {
			return fmt.Errorf("%w: remove as a user with the right to configure it", err)
		}
		if err != nil {
			return err
		}
		inst.lifter.removePolicy(ctx, queue)
	}
	return nil
}
