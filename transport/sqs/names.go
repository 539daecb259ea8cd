package sqs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// longestQueue and longestTopic are AWS's limits for names, in characters.
	longestQueue = 80
	longestTopic = 256
	// fifoSuffix ends the names of FIFO queues.
	fifoSuffix = ".fifo"
	// delaySuffix follows the name of a queue in that of its delay queue.
	delaySuffix = "-delay" + fifoSuffix
)

// DeadLettersSuffix follows the name of an endpoint in that of its dead-letter queue.
const DeadLettersSuffix = "-dead-letters"

// queueName returns the name at SQS of the queue of an address, as NServiceBus names it. A name
// that has the prefix already, as configured or as it is at SQS, does not get it twice.
func queueName(prefix, address string) (string, error) {
	if strings.TrimSpace(address) == "" {
		return "", &transport.NameError{Err: errors.New("sqs: a queue has no name")}
	}
	if strings.Contains(address, "://") || strings.HasPrefix(address, "arn:") {
		return "", &transport.NameError{Err: fmt.Errorf("sqs: queue %.300q: that is a URL or an ARN: write the name of the queue, "+
			"and set region and credentials for another account", address)}
	}
	stem := strings.TrimSuffix(address, fifoSuffix)
	suffix := address[len(stem):]
	clean, err := sanitize(prefix)
	if !strings.HasPrefix(stem, prefix) && (err != nil || !strings.HasPrefix(stem, clean)) {
		stem = prefix + stem
	}
	name, err := awsName(stem, suffix, longestQueue)
	if err != nil {
		return "", &transport.NameError{Err: fmt.Errorf("sqs: queue %.300q: %w", address, err)}
	}
	return name, nil
}

// topicName returns the name of the topic of a message type, as NServiceBus names it: without the
// assembly, which follows a comma. The commas in the arguments of a generic type are part of the
// name.
func topicName(prefix, messageType string) (string, error) {
	names := slices.Collect(header.TypeNames(messageType))
	if len(names) == 0 {
		return "", errors.New("sqs: a message type has no name")
	}
	full := names[0]
	name, err := awsName(prefix+full, "", longestTopic)
	if err != nil {
		return "", fmt.Errorf("sqs: topic of %q: %w", full, err)
	}
	return name, nil
}

// awsName returns the sanitized stem with the suffix, unless that is too long.
func awsName(stem, suffix string, longest int) (string, error) {
	name, err := sanitize(stem)
	if name += suffix; err == nil && len(name) > longest {
		err = fmt.Errorf("its name %.300q has %d characters, and AWS takes %d: shorten it, or the prefix", name, len(name), longest)
	}
	return name, err
}

// nameOf returns the name in an ARN.
func nameOf(arn string) string { return arn[strings.LastIndexByte(arn, ':')+1:] }

// sanitize replaces each character that is not a letter, a digit, "-" or "_" by "-", as NServiceBus
// does, where a character outside the first 65,536 is two. AWS accepts only ASCII letters and
// digits.
func sanitize(name string) (string, error) {
	if isClean(name) {
		return name, nil
	}
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

// isClean reports whether sanitize leaves name as it is.
func isClean(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}
