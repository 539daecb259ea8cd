package main

import (
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func rabbitTarget(raw string) (target, error) {
	t, err := rabbitmq.ParseURL(raw)
	if err != nil {
		return target{}, err
	}
	t.ConnectionName = programName
	return target{
		Transport: t, broker: "RabbitMQ",
		bench: func(int) bench.Broker { return bench.RabbitMQ(t.URL) },
	}, nil
}
