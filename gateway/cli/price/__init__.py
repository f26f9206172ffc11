"""`tollgate price`."""
