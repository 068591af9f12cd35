"""The server side: fleet table, selectors, rounds, the Flower strategy, the ServerApp."""
