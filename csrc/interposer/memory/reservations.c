/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/reservations.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/print.h"
#include "loader/real.h"

#include <stdlib.h>

struct gs_reservation {
    struct gs_node node;
    size_t size;
    unsigned mapped; /* ranges in it that the driver has mapped */
    bool lost;       /* see gs_reserve_again */
};

static struct {
    struct gs_mutex lock; /* taken by the mover, too */
    struct gs_map all;
} reservations = {.lock = GS_MUTEX(GS_RANK_RESERVING)};

bool gs_reserve_again(CUdeviceptr base, size_t size, bool *lost)
{
    CUdeviceptr address = 0;
    bool known = *lost;
    if (!known && GS_REAL(cuMemAddressFree)(base, size) != CUDA_SUCCESS)
        return false;
    CUresult result = GS_REAL(cuMemAddressReserve)(&address, size, 0, base, 0);
    *lost = result != CUDA_SUCCESS || address != base;
    if (result == CUDA_SUCCESS && *lost)
        GS_REAL(cuMemAddressFree)(address, size);
    if (*lost && !known)
        gs_print("cannot restore %zu bytes of this process's data, because the driver does not reserve their addresses "
                 "again (CUDA error %d). No data is lost, and the process keeps trying",
                 size, (int)result);
    return !*lost;
}

static struct gs_reservation *reservation_of(CUdeviceptr address, size_t size)
{
    struct gs_reservation *reservation = (struct gs_reservation *)gs_map_floor(&reservations.all, address);
    bool within =
        reservation != NULL && size <= reservation->size && address - reservation->node.key <= reservation->size - size;
    return within ? reservation : NULL;
}

bool gs_reservation_includes(CUdeviceptr address, size_t size)
{
    gs_mutex_lock(&reservations.lock);
    bool within = reservation_of(address, size) != NULL;
    gs_mutex_unlock(&reservations.lock);
    return within;
}

CUresult gs_reservation_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags)
{
    CUresult result = GS_REAL(cuMemMap)(address, size, offset, handle, flags);
    gs_mutex_lock(&reservations.lock);
    struct gs_reservation *reservation = reservation_of(address, size);
    /* After a checkpoint the driver may refuse to map into addresses that it reserved before. */
    if (result == CUDA_ERROR_INVALID_VALUE && reservation != NULL && reservation->mapped == 0 &&
        gs_reserve_again(reservation->node.key, reservation->size, &reservation->lost)) {
        gs_debug("addresses of %zu bytes were reserved again", reservation->size);
        result = GS_REAL(cuMemMap)(address, size, offset, handle, flags);
    }
    if (result == CUDA_SUCCESS && reservation != NULL)
        reservation->mapped++;
    gs_mutex_unlock(&reservations.lock);
    return result;
}

CUresult gs_reservation_unmap(CUdeviceptr address, size_t size)
{
    CUresult result = GS_REAL(cuMemUnmap)(address, size);
    gs_mutex_lock(&reservations.lock);
    struct gs_reservation *reservation = reservation_of(address, size);
    if (result == CUDA_SUCCESS && reservation != NULL && reservation->mapped != 0)
        reservation->mapped--;
    gs_mutex_unlock(&reservations.lock);
    return result;
}

void gs_reservation_add(CUdeviceptr address, size_t size)
{
    struct gs_reservation *reservation = calloc(1, sizeof(*reservation));
    if (reservation == NULL)
        return;
    reservation->node.key = address;
    reservation->size = size;
    gs_mutex_lock(&reservations.lock);
    gs_map_insert(&reservations.all, &reservation->node);
    gs_mutex_unlock(&reservations.lock);
}

struct gs_reservation *gs_reservation_take(CUdeviceptr address, bool *lost)
{
    gs_mutex_lock(&reservations.lock);
    struct gs_reservation *reservation = (struct gs_reservation *)gs_map_remove(&reservations.all, address);
    *lost = reservation != NULL && reservation->lost;
    gs_mutex_unlock(&reservations.lock);
    return reservation;
}

void gs_reservation_taken(struct gs_reservation *reservation, bool freed)
{
    if (freed || reservation == NULL) {
        free(reservation);
        return;
    }
    gs_mutex_lock(&reservations.lock);
    gs_map_insert(&reservations.all, &reservation->node);
    gs_mutex_unlock(&reservations.lock);
}

void gs_reservations_after_fork(void)
{
    gs_mutex_after_fork(&reservations.lock);
    reservations.all.root = NULL;
}
