package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

const deadLettersHelp = `List, return and remove the dead letters of a queue: messages that the broker dead-lettered because they were
delivered too often, or expired where the queue keeps such messages. A running endpoint moves those of its own queues to
its error queue; these commands are for other queues.

The flags are those of holdfast errors. Where no header describes a fault, the broker's reason is shown as the class and
its description as the error.`

// deadLetterQueue is the end of the name of a queue's dead-letter queue.
const deadLetterQueue = "/$DeadLetterQueue"

func (a *app) asbCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "asb",
		Short: "Work with the dead letters of Azure Service Bus",
		Long: `Work with the dead letters of queues on Azure Service Bus. Queues and subscriptions of endpoints are
created by holdfast endpoint.`,
	}, a.group(&cobra.Command{
		Use:   "dead-letters",
		Short: "List, return and remove the dead letters of a queue",
		Long:  deadLettersHelp,
	}, a.deadLettersListCommand(), a.deadLettersRetryCommand(), a.deadLettersDiscardCommand()))
}

func (a *app) deadLettersListCommand() *cobra.Command {
	return a.listCommand(&selecting{deadLetters: true}, &cobra.Command{
		Use:     "list QUEUE [ID]...",
		Short:   "List the dead letters of a queue",
		Long:    deadLettersHelp,
		Example: `  holdfast asb dead-letters list sales --class MaxDeliveryCountExceeded --transport sb://shop.servicebus.windows.net`,
		Args:    cobra.MinimumNArgs(1),
	})
}

func (a *app) deadLettersRetryCommand() *cobra.Command {
	return a.takeCommand(&taking{selecting: selecting{deadLetters: true}, take: (*errorqueue.Queue).Retry}, &cobra.Command{
		Use:     "retry QUEUE [ID]...",
		Aliases: []string{"resubmit"},
		Short:   "Return dead letters to their queue",
		Long: `Return dead letters to their queue with their id and body, without the headers of their failure. Each is sent before it
is removed from the dead letters: killed in between, the command leaves it in both places.

` + deadLettersHelp,
		Example: `  holdfast asb dead-letters retry sales --all --rate 50
  holdfast asb dead-letters retry sales --to sales-2 --first 1`,
		Args: cobra.MinimumNArgs(1),
	})
}

func (a *app) deadLettersDiscardCommand() *cobra.Command {
	return a.takeCommand(&taking{selecting: selecting{deadLetters: true}, take: (*errorqueue.Queue).Discard}, &cobra.Command{
		Use:     "discard QUEUE [ID]...",
		Aliases: []string{"purge"},
		Short:   "Remove dead letters for good",
		Long: `Remove dead letters for good. Export them first if they may be missed:
holdfast errors export --queue 'QUEUE` + deadLetterQueue + `'.

` + deadLettersHelp,
		Example: `  holdfast asb dead-letters discard sales --class TTLExpiredException
  holdfast asb dead-letters purge sales --all`,
		Args: cobra.MinimumNArgs(1),
	})
}

// deadLetter returns the entry of a message that the broker may have dead-lettered. Service Bus can
// forward dead letters to an error queue. The headers say which class, error and queue a failure
// has. Without these headers the broker's properties do.
func deadLetter(m *transport.Message) errorqueue.Entry {
	e := errorqueue.EntryOf(m)
	e.Class = cmp.Or(e.Class, m.Native[asb.PropertyDeadLetterReason])
	e.Error = cmp.Or(e.Error, m.Native[asb.PropertyDeadLetterDescription])
	e.Queue = cmp.Or(e.Queue, m.Native[asb.PropertyDeadLetterSource])
	return e
}
