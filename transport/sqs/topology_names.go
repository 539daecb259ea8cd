package sqs

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

const (
	// longestQueue and longestTopic are how many characters names have at most.
	longestQueue = 80
	longestTopic = 256
	// fifoSuffix is what the names of FIFO queues end in.
	fifoSuffix = ".fifo"
	// delaySuffix is what the queue is called in which messages for a queue wait for longer than SQS keeps them back.
	delaySuffix = "-delay" + fifoSuffix
)

// DeadLettersSuffix is what the queue is called, after its endpoint, to which SQS moves what it gives up.
const DeadLettersSuffix = "-dead-letters"

// queueName is what the queue of an address is called at SQS, as NServiceBus calls it. A name that has the prefix
// already does not get it twice, so that an address that others have made of a name is good as well.
func queueName(prefix, address string) (string, error) {
	if strings.TrimSpace(address) == "" {
		return "", errors.New("sqs: a queue has no name")
	}
	stem, suffix := address, ""
	if strings.HasSuffix(address, fifoSuffix) {
		stem, suffix = strings.TrimSuffix(address, fifoSuffix), fifoSuffix
	}
	if !prefixed(prefix, stem) {
		stem = prefix + stem
	}
	name, err := sanitize(stem)
	if err != nil {
		return "", fmt.Errorf("sqs: queue %q: %w", address, err)
	}
	if name += suffix; len(name) > longestQueue {
		return "", fmt.Errorf("sqs: queue %q: %w", address, tooLongError(name, longestQueue))
	}
	return name, nil
}

// prefixed tells whether a name begins with the prefix, as it was given or as it is at SQS.
func prefixed(prefix, name string) bool {
	if strings.HasPrefix(name, prefix) {
		return true
	}
	clean, err := sanitize(prefix)
	return err == nil && strings.HasPrefix(name, clean)
}

// topicName is what the topic of a message type is called at SNS, as NServiceBus calls it. What
// follows a comma, the assembly, is no part of a type's name.
func topicName(prefix, messageType string) (string, error) {
	full, _, _ := strings.Cut(messageType, ",")
	full = strings.TrimSpace(full)
	if full == "" {
		return "", errors.New("sqs: a message type has no name")
	}
	name, err := sanitize(prefix + full)
	if err != nil {
		return "", fmt.Errorf("sqs: topic of %q: %w", full, err)
	}
	if len(name) > longestTopic {
		return "", fmt.Errorf("sqs: topic of %q: %w", full, tooLongError(name, longestTopic))
	}
	return name, nil
}

func tooLongError(name string, longest int) error {
	return fmt.Errorf("its name %q has %d characters, and AWS takes %d: shorten it, or the prefix", name, len(name), longest)
}

// sanitize replaces what is neither a letter nor a digit, "-" or "_" by "-": as NServiceBus does, where a character
// outside the first 65,536 is two. AWS takes no letters or digits but those of ASCII.
func sanitize(name string) (string, error) {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r == '-' || r == '_' || r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)):
			b.WriteRune(r)
		case r <= 0xffff && (unicode.IsLetter(r) || unicode.Is(unicode.Nd, r)):
			return "", fmt.Errorf("the letter or digit %q cannot stand in a name at AWS", r)
		default:
			b.WriteString(strings.Repeat("-", max(1, utf16.RuneLen(r))))
		}
	}
	return b.String(), nil
}
