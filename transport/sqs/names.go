package sqs

import (
	"fmt"
	"strings"
)

// queueName is the name of a queue at SQS.
func queueName(prefix, name string) (string, error) {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		default:
			return '-'
		}
	}, prefix+name)
	if len(name) > 80 {
		return "", fmt.Errorf("sqs: queue name %q has %d characters, 80 is the most", name, len(name))
	}
	return name, nil
}
